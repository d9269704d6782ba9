"""A policy as data: numbers that stand on an item or a queue, as JSON where the name of a policy may stand too.

    {"backoff": {"kind": "exponential", "base": "2s", "factor": 2, "cap": "1h"}, "max_attempts": 5, "max_age": "7d"}

What it leaves out is taken from the policy below it: an item's stands over its queue's, and that over the handler's.
Rules and functions are code: a policy that has them stands there by name. `max_crashes` is the queue's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from redrive.core import durations
from redrive.core.backoff import Backoff, constant, exponential, immediate, linear, never
from redrive.core.item import Millis
from redrive.core.policy import Policy
from redrive.core.quantity import shown
from redrive.errors import ConfigError

PolicyLike = str | Policy | Mapping[str, Any]
"""The name of a policy; a Policy without rules; or some of its numbers, as in {"max_attempts": 3}."""
FIELDS = ("backoff", "max_attempts", "max_age", "route")
_NAME_IT = "give it a name with app.policy(name, Policy(...)), and use that"
_KINDS: dict[str, Callable[..., Backoff]] = {
    "exponential": exponential,
    "linear": linear,
    "constant": constant,
    "immediate": immediate,
    "never": never,
}


class PolicyData(Struct, frozen=True):
    """UNSET: as the policy below says."""

    backoff: Backoff | UnsetType = UNSET
    max_attempts: int | UnsetType | None = UNSET
    max_age: Millis | UnsetType | None = UNSET
    route: str | UnsetType = UNSET

    @property
    def given(self) -> tuple[str, ...]:
        """The fields that it does not leave to the policy below."""
        return tuple([name for name in FIELDS if getattr(self, name) is not UNSET])

    def over(self, policy: Policy) -> Policy:
        """That policy, with the numbers of this one."""
        return policy.with_values(**{name: getattr(self, name) for name in self.given})

    def describe(self) -> str:
        """One line for people."""
        parts = [] if self.backoff is UNSET else [self.backoff.describe()]
        if self.max_attempts is not UNSET:
            parts.append("any number of attempts" if self.max_attempts is None else f"{self.max_attempts} attempts")
        if self.max_age is not UNSET:
            parts.append("of any age" if self.max_age is None else f"for {durations.format(self.max_age)}")
        if self.route is not UNSET:
            parts.append(f"letters to {self.route or 'no route'}")
        return ", ".join(parts)


def is_data(text: str) -> bool:
    """Whether the text is a policy, and not the name of one."""
    return text.startswith("{")


def describe(text: str) -> str:
    """A name as it is, and data as a line for people."""
    return read(text).describe() if is_data(text) else text


@lru_cache(maxsize=1024)
def read(text: str) -> PolicyData:
    """Raises ConfigError."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError) as error:
        hint = 'use JSON such as {"max_attempts": 3}'
        raise ConfigError(f"{shown(text)} is not a policy: {error}", field="policy", hint=hint) from None
    return _of_mapping(given)


def policy_text(policy: Policy | Mapping[str, Any]) -> str:
    """What is stored: all numbers of a Policy, or those that a mapping gives. Raises ConfigError."""
    data = _of_policy(policy) if isinstance(policy, Policy) else _of_mapping(policy)
    given: dict[str, Any] = {name: getattr(data, name) for name in data.given}
    if "backoff" in given:
        given["backoff"] = _backoff_fields(given["backoff"])
    if given.get("max_age") is not None:
        given["max_age"] = durations.format(given["max_age"])
    return msgspec.json.encode(given).decode()


def resolve(policy: Policy, named: Mapping[str, Policy], *texts: str) -> tuple[Policy, str]:
    """The policy that judges: of the handler, under each of `texts` (of the queue, then of the item).

    A name replaces what is below it, data replaces the numbers that it gives. The second value tells of texts that
    are not known here, and were passed over.
    """
    notes: list[str] = []
    for text in filter(None, texts):
        if text in named:
            policy = named[text]
        elif not is_data(text):
            notes.append(f"no policy named {text!r} here; judged by another")
        else:
            try:
                policy = read(text).over(policy)
            except ConfigError as error:  # written by a newer release, say
                notes.append(f"{error.message}; judged by another")
    return policy, "; ".join(dict.fromkeys(notes))


def _of_policy(policy: Policy) -> PolicyData:
    if policy.rules or policy.has_routes:
        raise ConfigError("a policy with rules or routes cannot be stored", field="policy", hint=_NAME_IT)
    if policy.backoff.function is not None:
        raise ConfigError("a backoff function cannot be stored", field="policy", hint=_NAME_IT)
    return PolicyData(policy.backoff, policy.max_attempts, policy.max_age, policy.route)


def _of_mapping(given: Mapping[str, Any]) -> PolicyData:
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise ConfigError(f"{shown(unknown[0])} is none of its fields", field="policy", hint=f"use {', '.join(FIELDS)}")
    values = dict(given)
    if isinstance(values.get("backoff"), Mapping):
        values["backoff"] = _backoff(values["backoff"])
    # A Policy checks what it is made of, and knows durations.
    whole = _of_policy(Policy(**values))
    return PolicyData(**{name: getattr(whole, name) for name in given})


def _backoff(given: Mapping[str, Any]) -> Backoff:
    values = dict(given)
    kind = values.pop("kind", None)
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise ConfigError(f"{shown(kind)} is not a kind of backoff", field="backoff", hint=f"use {', '.join(_KINDS)}")
    fields = signature(make).parameters
    hint = f"{kind} takes {', '.join(fields) or 'no other field'}"
    for name in values:
        if name not in fields:
            raise ConfigError(f"{kind} does not take {shown(name)}", field="backoff", hint=hint)
    for name, field in fields.items():
        if field.default is field.empty and name not in values:
            raise ConfigError(f"{kind} needs {name}", field="backoff", hint=hint)
    return make(**values)


def _backoff_fields(backoff: Backoff) -> dict[str, Any]:
    """As `_backoff` takes them."""
    fields: dict[str, Any] = {"kind": backoff.kind}
    if backoff.kind == "never":
        return fields
    fields["base"] = durations.format(backoff.base)
    if backoff.kind == "linear":
        fields["step"] = durations.format(backoff.step)
    if backoff.kind == "exponential":
        fields["factor"] = backoff.factor
    if backoff.cap is not None:
        fields["cap"] = durations.format(backoff.cap)
    if backoff.jitter:
        fields["jitter"] = backoff.jitter
    return fields
