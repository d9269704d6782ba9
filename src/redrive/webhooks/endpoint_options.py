"""The options of an endpoint, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, get_args

from msgspec.structs import replace

from redrive.core import durations, rates
from redrive.core.durations import Duration
from redrive.core.item import Millis
from redrive.core.policy_data import PolicyLike, is_data, policy_text, read
from redrive.core.quantity import shown
from redrive.core.validation import check_count, check_flag, check_str_list, check_text, choice
from redrive.errors import ConfigError
from redrive.net.messages import check_error_statuses, check_headers
from redrive.net.signing import Signature
from redrive.net.verification import Verification, check_verification
from redrive.webhooks.model import Order

RESERVED = ("webhook-", "x-redrive-", "idempotency-key")
"""How headers begin that redrive sets."""
LONGEST: Millis = 50_000
"""Of a request: it is over before the lease of a worker that lost its store is, and another worker sends."""
VERIFYING = frozenset({"provider", "secret", "verification"})


class EndpointOptions(TypedDict, total=False):
    """What `create` and `update` take besides the URL.

    `provider`: who signs what comes in, with `secret` and, where the provider has choices, `verification`. `order`:
    skip, block or park, or none for up to `concurrency` at once. `timeout`: at most 50 s. `retry`: a policy as data.
    `retry_on`, `fail_on`: statuses such as 404 or "5xx" that are judged otherwise. `events`: patterns of event types to
    publish to it, `signing`: hmac or ed25519. `max_age` counts from `window`: received, or first_attempt, without which
    a webhook waits for ever.
    """

    name: str
    provider: str
    secret: str | Iterable[str]
    verification: Mapping[str, Any]
    bad_signature: Literal["flag", "refuse"]
    order: Order
    concurrency: int
    rate: str | None
    timeout: Duration
    retry: PolicyLike | None
    max_age: Duration
    window: Literal["received", "first_attempt"]
    retry_on: Iterable[int | str]
    fail_on: Iterable[int | str]
    headers: Mapping[str, str]
    events: Iterable[str]
    signing: Signature
    breaker: bool
    disable_after: Duration | None


def verification_of(
    known: Verification, secrets: tuple[str, ...], options: EndpointOptions
) -> tuple[Verification, tuple[str, ...]]:
    """As it is stored, and the secrets apart from it."""
    provider = options.get("provider", known.provider)
    given: object = options.get("secret", secrets if provider == known.provider else ())
    own = (given,) if isinstance(given, str) else tuple(check_str_list(given, field="secret", hint="give texts"))
    try:
        whole = check_verification(provider, own, **options.get("verification", {}))
    except ConfigError as error:
        field = {"secrets": "secret", "provider": "provider"}.get(error.field, f"verification.{error.field}")
        raise error.named(field) from None
    return replace(whole, secrets=()), whole.secrets


def _time(value: Any, field: str) -> Millis:
    return durations.positive(value, field=field)


def _timeout(value: Any, field: str) -> Millis:
    time = _time(value, field)
    if time > LONGEST:
        raise ConfigError(f"{durations.format(time)} is too long", field=field, hint="use at most 50s")
    return time


def _retry(value: Any, field: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        if not is_data(value):
            hint = 'use a policy as data, such as {"max_attempts": 10}'
            raise ConfigError(f"{shown(value)} is not a policy as data", field=field, hint=hint)
        read(value)
        return value
    return policy_text(value)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "name": check_text,
    "bad_signature": choice("flag", "refuse"),
    "order": choice(*get_args(Order)),
    "concurrency": lambda value, field: check_count(value, field=field, most=1_000, error=ConfigError),
    "rate": lambda value, field: None if value is None else rates.format(rates.parse(value, field=field)),
    "timeout": _timeout,
    "retry": _retry,
    "max_age": _time,
    "window": choice("received", "first_attempt"),
    "retry_on": check_error_statuses,
    "fail_on": check_error_statuses,
    "headers": lambda value, field: check_headers(value, field=field, reserved=RESERVED),
    "events": lambda value, field: tuple(check_str_list(value, field=field, hint='use patterns such as "order.*"')),
    "signing": choice(*get_args(Signature)),
    "breaker": check_flag,
    "disable_after": lambda value, field: None if value is None else _time(value, field),
}
_KNOWN = (*_CHECKS, *sorted(VERIFYING))


def check_options(options: EndpointOptions) -> dict[str, Any]:
    """Those that are fields of an endpoint."""
    for name in options:
        if name not in _KNOWN:
            raise ConfigError("there is no such option of an endpoint", field=name, hint=f"use {', '.join(_KNOWN)}")
    given: Mapping[str, Any] = {name: value for name, value in options.items() if name not in VERIFYING}
    return {name: _CHECKS[name](value, name) for name, value in given.items()}
