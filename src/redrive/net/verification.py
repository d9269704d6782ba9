"""Verification of incoming webhooks: the signature schemes of providers, generic HMAC and static tokens.

`check_verification` validates the options, once. `verify` checks a request; for a forged one it returns the reason and
raises nothing.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from redrive.core.quantity import shown
from redrive.errors import BadSignature, ConfigError
from redrive.net import signing

LONGEST_TOLERANCE = 24 * 3600
LONGEST_ID = 256

_PRESETS: dict[str, dict[str, str]] = {
    "stripe": {"header": "Stripe-Signature", "template": "{timestamp}.{body}"},
    "github": {"header": "X-Hub-Signature-256", "prefix": "sha256="},
    "telegram": {"header": "X-Telegram-Bot-Api-Secret-Token"},
    "slack": {
        "header": "X-Slack-Signature",
        "prefix": "v0=",
        "timestamp_header": "X-Slack-Request-Timestamp",
        "template": "v0:{timestamp}:{body}",
    },
}

_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", "use a header name such as X-Signature"
_TEXTS: dict[str, tuple[str, str]] = {
    "header": _HEADER_NAME,
    "timestamp_header": _HEADER_NAME,
    "id_header": _HEADER_NAME,
    "algorithm": ("sha1|sha256|sha512", "use sha256, sha512 or sha1"),
    "encoding": ("hex|base64", "use hex or base64"),
    "prefix": (r"[ -~]{1,64}", "use at most 64 printable ASCII characters"),
    "template": (r"[^\ud800-\udfff]{1,256}", "use a text such as {timestamp}.{body}"),
}
"""The pattern of each option, and the fix."""
_ANY_SECRET = r"(?!\s)[^\ud800-\udfff]{1,1024}(?<!\s)", "use 1 to 1024 characters without blanks around them"
_SECRETS: dict[str, tuple[str, str]] = {
    "telegram": (r"[A-Za-z0-9_-]{1,256}", "use 1 to 256 of A-Z a-z 0-9 _ -, as in setWebhook"),
    "static": (r"(?! )[ -~]{1,1024}(?<! )", "use 1 to 1024 printable ASCII characters without blanks around them"),
}

_ID_HEADERS = {"github": "X-GitHub-Delivery", "standard": signing.ID}
_ID_FIELDS = {"stripe": "id", "slack": "event_id", "telegram": "update_id"}
_ID_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    provider: msgspec.json.Decoder(msgspec.defstruct("Body", [(field, str | int, "")]))
    for provider, field in _ID_FIELDS.items()
}


class Verification(Struct, frozen=True):
    """Signature scheme and secrets of an endpoint. Several `secrets` during a rotation.

    For hmac and static: `header` holds the signature or the token, behind `prefix`. For hmac: `template` is the signed
    text, `{body}` by default, `{timestamp}.{body}` with a `timestamp_header`. `tolerance` is in seconds. `id_header`
    holds the sender's id of a delivery.
    """

    provider: str
    secrets: tuple[str, ...] = ()
    header: str = ""
    algorithm: str = "sha256"
    encoding: str = "hex"
    prefix: str = ""
    timestamp_header: str = ""
    template: str = ""
    tolerance: int = signing.TOLERANCE
    id_header: str = ""

    def __repr__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        secrets = given.pop("secrets", ())
        options = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"Verification({options}, secrets=<{len(secrets)}>)"


_TAKEN: dict[str, tuple[str, ...]] = {
    "stripe": ("secrets", "tolerance"),
    "github": ("secrets",),
    "telegram": ("secrets",),
    "slack": ("secrets", "tolerance"),
    "standard": ("secrets", "tolerance"),
    "hmac": Verification.__struct_fields__[1:],
    "static": ("secrets", "header", "prefix", "id_header"),
    "none": ("id_header",),
}
"""The options of each provider."""
PROVIDERS = tuple(_TAKEN)
_DEFAULTS: dict[str, Any] = {name: value for name, value in asdict(Verification("")).items() if name != "provider"}


def check_verification(provider: object, secrets: object = (), **options: Any) -> Verification:
    """A valid Verification with these options. Raises ConfigError; no error shows a secret."""
    name = _known(provider)
    for field, value in options.items():
        if field not in _DEFAULTS:
            near = get_close_matches(field, _TAKEN[name], n=1)
            hint = f"did you mean {near[0]}?" if near else f"{name} takes {', '.join(_TAKEN[name])}"
            raise ConfigError("no such option", field=field, hint=hint)
        if value != _DEFAULTS[field]:
            _check_option(name, field, value)
    verification = Verification(name, _checked_secrets(name, secrets), **options)
    _check_together(verification)
    return verification


def verify(verification: Verification, headers: Sequence[tuple[str, str]], body: bytes, *, now_seconds: float) -> str:
    """The reason why the request is not genuine; "" if it is. No content of a request raises an error."""
    provider = _known(verification.provider)
    scheme = replace(verification, **_PRESETS.get(provider, {}))
    try:
        _SCHEMES[provider](scheme, headers, body, now_seconds)
    except BadSignature as error:
        return error.message
    return ""


def delivery_id(verification: Verification, headers: Sequence[tuple[str, str]], body: bytes) -> str:
    """The sender's id of a delivery, the same when it is repeated; "" if there is none that can be read.

    The ids of GitHub and of an `id_header` are not signed: a recorded request can be sent again under another id.
    """
    provider = verification.provider
    try:
        if provider in _ID_FIELDS:
            found = str(getattr(_ID_DECODERS[provider].decode(body), _ID_FIELDS[provider]))
        else:
            name = _ID_HEADERS.get(provider, verification.id_header)
            found = signing.header_of(headers, name) if name else ""
    except (BadSignature, msgspec.MsgspecError, RecursionError, ValueError):
        return ""
    return found if found.isprintable() and len(found) <= LONGEST_ID else ""


# --- configuration ---------------------------------------------------------------------------------------------------


def _known(provider: object) -> str:
    if isinstance(provider, str) and provider in _TAKEN:
        return provider
    near = get_close_matches(provider.lower(), PROVIDERS, n=1) if isinstance(provider, str) else []
    hint = f"{f'did you mean {near[0]}? ' if near else ''}there are {', '.join(PROVIDERS)}"
    raise ConfigError(f"no provider is called {shown(provider)}", field="provider", hint=hint)


def _check_option(provider: str, field: str, value: object) -> None:
    if field not in _TAKEN[provider]:
        hint = f"leave it out; {provider} takes {', '.join(_TAKEN[provider])}"
        raise ConfigError(f"{provider} does not take this option, got {shown(value)}", field=field, hint=hint)
    if field == "tolerance":
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST_TOLERANCE:
            hint = f"use 1 to {LONGEST_TOLERANCE} seconds"
            raise ConfigError(f"{shown(value)} is not a valid tolerance", field=field, hint=hint)
        return
    pattern, hint = _TEXTS[field]
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)


def _checked_secrets(provider: str, secrets: object) -> tuple[str, ...]:
    if isinstance(secrets, str) or not isinstance(secrets, Sequence):
        raise ConfigError("must be a list of texts", field="secrets", hint="list both during a rotation")
    if "secrets" not in _TAKEN[provider]:
        if secrets:
            hint = "leave them out, or name the provider that they belong to"
            raise ConfigError(f"{provider} takes no secrets, got {len(secrets)}", field="secrets", hint=hint)
        return ()
    if not secrets:
        raise ConfigError(f"{provider} needs a secret", field="secrets", hint="give the one that the sender has")
    if provider == "standard":
        signing.read_keys(secrets, signing.VERIFYING)
        return tuple(secrets)
    pattern, hint = _SECRETS.get(provider, _ANY_SECRET)
    for number, secret in enumerate(secrets, 1):
        if not isinstance(secret, str) or not re.fullmatch(pattern, secret):
            raise ConfigError(f"secret {number} of {len(secrets)} cannot be used", field="secrets", hint=hint)
    return tuple(secrets)


def _check_together(given: Verification) -> None:
    if "header" in _TAKEN[given.provider] and not given.header:
        hint = "name the header that holds the signature or the token"
        raise ConfigError(f"{given.provider} needs a header", field="header", hint=hint)
    times = 1 if given.timestamp_header else 0
    if given.template and (given.template.count("{body}"), given.template.count("{timestamp}")) != (1, times):
        rule = (
            "{body} once and {timestamp} once" if times else "{body} once, and {timestamp} only with timestamp_header"
        )
        raise ConfigError(f"{shown(given.template)} cannot be used", field="template", hint=f"it must have {rule}")
    if given.provider == "hmac" and not times and given.tolerance != signing.TOLERANCE:
        hint = "name the timestamp_header, or leave it out"
        raise ConfigError(f"a tolerance of {given.tolerance} needs a timestamp_header", field="tolerance", hint=hint)


# --- requests --------------------------------------------------------------------------------------------------------


def _check_hmac(scheme: Verification, headers: signing.Headers, body: bytes, now_seconds: float) -> None:
    given = _behind_prefix(scheme, headers)
    timestamp = ""
    if scheme.timestamp_header:
        timestamp = signing.header_of(headers, scheme.timestamp_header)
        _check_age(scheme, timestamp, now_seconds)
    _check_signature(scheme, [given], timestamp, body)


def _check_stripe(scheme: Verification, headers: signing.Headers, body: bytes, now_seconds: float) -> None:
    parts = [part.strip().partition("=") for part in signing.header_of(headers, scheme.header).split(",")]
    times = [value for key, _, value in parts if key == "t"]
    given = [value for key, _, value in parts if key == "v1"]
    if len(times) != 1 or not given:
        raise BadSignature(f"{scheme.header} is not of the form t=...,v1=...", part=scheme.header)
    _check_age(scheme, times[0], now_seconds)
    _check_signature(scheme, given, times[0], body)


def _check_static(scheme: Verification, headers: signing.Headers, _body: bytes, _now_seconds: float) -> None:
    given = _bytes(_behind_prefix(scheme, headers))
    if not any(hmac.compare_digest(secret.encode(), given) for secret in scheme.secrets):
        raise BadSignature("token does not match", part=scheme.header)


def _check_standard(scheme: Verification, headers: signing.Headers, body: bytes, now_seconds: float) -> None:
    signing.verify(scheme.secrets, headers, body, now_seconds=now_seconds, tolerance=scheme.tolerance)


_SCHEMES: Mapping[str, Callable[[Verification, signing.Headers, bytes, float], None]] = {
    "stripe": _check_stripe,
    "github": _check_hmac,
    "telegram": _check_static,
    "slack": _check_hmac,
    "standard": _check_standard,
    "hmac": _check_hmac,
    "static": _check_static,
    "none": lambda _scheme, _headers, _body, _now_seconds: None,
}


def _check_age(scheme: Verification, timestamp: str, now_seconds: float) -> None:
    part = scheme.timestamp_header or scheme.header
    signing.check_age(timestamp, part=part, now_seconds=now_seconds, tolerance=scheme.tolerance)


def _check_signature(scheme: Verification, given: Sequence[str], timestamp: str, body: bytes) -> None:
    template = scheme.template or ("{timestamp}.{body}" if timestamp else "{body}")
    before, _, after = [part.replace("{timestamp}", timestamp).encode() for part in template.partition("{body}")]
    in_hex = scheme.encoding == "hex"
    for secret in scheme.secrets:
        digest = hmac.new(secret.encode(), before, scheme.algorithm)
        digest.update(body)
        digest.update(after)
        expected = digest.hexdigest().encode() if in_hex else b64encode(digest.digest())
        if any(hmac.compare_digest(expected, _bytes(each.lower() if in_hex else each)) for each in given):
            return
    raise BadSignature("signature does not match", part=scheme.header)


def _behind_prefix(scheme: Verification, headers: signing.Headers) -> str:
    value = signing.header_of(headers, scheme.header)
    if not value.startswith(scheme.prefix):
        raise BadSignature(f"{scheme.header} does not begin with {scheme.prefix!r}", part=scheme.header)
    return value.removeprefix(scheme.prefix)


def _bytes(text: str) -> bytes:
    """A header value as bytes, unpaired surrogates included: `compare_digest` accepts only ASCII text."""
    return text.encode(errors="surrogatepass")
