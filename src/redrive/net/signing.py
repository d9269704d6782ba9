"""Signatures of Standard Webhooks 1.0: `sign` for outgoing requests, `verify` for receivers.

The text `id.timestamp.body` is signed, with HMAC-SHA256 under a shared secret (`v1`) or with an ed25519 key (`v1a`).
Functions here have no clock and no state: `verify` refuses old timestamps, and returns the id for deduplication.
"""

from __future__ import annotations

import hmac
import math
import re
import secrets as random_source
from base64 import b64decode, b64encode
from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from redrive.core.quantity import shown
from redrive.errors import BadSignature, ConfigError, MissingExtra

SECRET, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
SIGNING, VERIFYING = (SECRET, PRIVATE), (SECRET, PUBLIC)
Signature = Literal["hmac", "ed25519"]
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300
LONGEST_HEADER = 8192
MOST_SIGNATURES = 10
"""Signatures in one header: with a public key each costs a pass over the body."""

Headers = Mapping[str, str] | Sequence[tuple[str, str]]

_SIZES: dict[str, tuple[Container[int], str]] = {
    SECRET: (range(24, 65), "24 to 64"),
    # The seed alone, or followed by the public key, as libsodium and Svix write it.
    PRIVATE: ((32, 64), "32 or 64"),
    PUBLIC: ((32,), "32"),
}
_ID = re.compile(r"[!-\-/-~]{1,256}")
"""Printable ASCII without the dot, so that a part of the body cannot pass for the timestamp."""
_SECONDS = re.compile(r"[0-9]{1,12}")


def new_secret() -> str:
    return f"{SECRET}{_base64(random_source.token_bytes(32))}"


def new_key_pair() -> tuple[str, str]:
    """The private and the public key."""
    private = f"{PRIVATE}{_base64(random_source.token_bytes(32))}"
    return private, public_key(private)


def public_key(private: str) -> str:
    """The `whpk_` key that belongs to a `whsk_` key."""
    key = read_keys((private,), (PRIVATE,))[0]
    return f"{PUBLIC}{_base64(key.public_key().public_bytes_raw())}"


def new_signing_secret(kind: Signature) -> str:
    """A `whsec_` secret or a `whsk_` key."""
    return new_secret() if kind == "hmac" else new_key_pair()[0]


def verifying_key(secret: str) -> str:
    """The key of a receiver: the shared secret itself, or the public key of a private one."""
    return public_key(secret) if secret.startswith(PRIVATE) else secret


def sign(secrets: Sequence[str], webhook_id: str, timestamp_seconds: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret, for rotation."""
    if not _ID.fullmatch(webhook_id):
        hint = "use 1 to 256 printable ASCII characters without blanks and dots"
        raise ConfigError(f"{shown(webhook_id)} cannot be signed", field="webhook_id", hint=hint)
    if not _SECONDS.fullmatch(str(timestamp_seconds)):
        hint = "use int(time.time())"
        raise ConfigError(f"{shown(timestamp_seconds)} is not a time", field="timestamp_seconds", hint=hint)
    _check_body(body)
    start = f"{webhook_id}.{timestamp_seconds}.".encode()
    return " ".join([_signature(key, start, body) for key in read_keys(secrets, SIGNING)])


def signed_headers(secrets: Sequence[str], webhook_id: str, timestamp_seconds: int, body: bytes) -> dict[str, str]:
    signature = sign(secrets, webhook_id, timestamp_seconds, body)
    return {ID: webhook_id, TIMESTAMP: str(timestamp_seconds), SIGNATURE: signature}


def verify(
    secrets_or_public_keys: Sequence[str],
    headers: Headers,
    body: bytes,
    *,
    now_seconds: float,
    tolerance: int = TOLERANCE,
    seen: SeenRequests | None = None,
) -> str:
    """Returns the webhook id: a handler that must run once remembers it, since a delivery may be repeated.

    `body` as it was received, before any parsing. `seen` refuses a request that was verified before. Raises
    BadSignature, or ConfigError for an invalid key.
    """
    keys = read_keys(secrets_or_public_keys, VERIFYING)
    _check_body(body)
    webhook_id, timestamp, signatures = [header_of(headers, name) for name in (ID, TIMESTAMP, SIGNATURE)]
    if not _ID.fullmatch(webhook_id):
        raise BadSignature(f"{ID} contains a blank, a dot or another character that an id must not have", part=ID)
    check_age(timestamp, part=TIMESTAMP, now_seconds=now_seconds, tolerance=tolerance)
    given = signatures.split()
    if len(given) > MOST_SIGNATURES:
        raise BadSignature(f"{SIGNATURE} has {len(given)} signatures, more than {MOST_SIGNATURES}", part=SIGNATURE)
    start = f"{webhook_id}.{timestamp}.".encode()
    if not any(_matches(key, given, start, body) for key in keys):
        raise BadSignature("signature does not match", part=SIGNATURE)
    if seen is not None:
        seen.add(webhook_id, int(timestamp), now_seconds, tolerance)
    return webhook_id


class SeenRequests:
    """Replay protection: requests that this process verified, each for as long as its timestamp is valid. A recorded
    request that is sent again is refused. A repeated delivery has a new timestamp.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], float] = {}

    def add(self, webhook_id: str, timestamp: int, now_seconds: float, tolerance: int) -> None:
        """Raises BadSignature if it was added before."""
        while self._until and self._until[oldest := next(iter(self._until))] < now_seconds:
            del self._until[oldest]
        if (webhook_id, timestamp) in self._until:
            raise BadSignature("the same request was received before", part=ID)
        self._until[webhook_id, timestamp] = now_seconds + 2 * tolerance


def header_of(headers: Headers, name: str) -> str:
    """The value of a header, its name in any case. Raises BadSignature if it is missing, repeated or too long."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    wanted = name.lower()
    values = [value for key, value in pairs if key.lower() == wanted]
    if not values or not values[0]:
        raise BadSignature(f"{name} is missing", part=name)
    if len(values) > 1:
        raise BadSignature(f"{name} occurs {len(values)} times", part=name)
    if len(values[0]) > LONGEST_HEADER:
        raise BadSignature(f"{name} is longer than {LONGEST_HEADER} characters", part=name)
    return values[0]


def check_age(timestamp: str, *, part: str, now_seconds: float, tolerance: int) -> None:
    """Raises BadSignature unless the timestamp is at most `tolerance` seconds away from now."""
    if not _SECONDS.fullmatch(timestamp):
        raise BadSignature("timestamp is not a number of seconds", part=part)
    age = now_seconds - int(timestamp)
    if abs(age) > tolerance:
        distance = f"{math.ceil(abs(age))} s {'old' if age > 0 else 'in the future'}"
        raise BadSignature(f"timestamp is {distance} (tolerance {tolerance} s)", part=part)


def read_keys(secrets: object, kinds: Sequence[str], *, field: str = "secrets") -> list[Any]:
    """HMAC keys as bytes, ed25519 keys as objects of `cryptography`. No error shows a secret."""
    if isinstance(secrets, str) or not isinstance(secrets, Sequence) or not secrets:
        raise ConfigError("must be a list of at least one secret", field=field, hint="list both during a rotation")
    return [_key(secret, kinds, field) for secret in secrets]


def _key(secret: object, kinds: Sequence[str], field: str) -> Any:
    kind = next((kind for kind in _SIZES if isinstance(secret, str) and secret.startswith(kind)), "")
    if not isinstance(secret, str) or kind not in kinds:
        hint = f"sign with {SECRET} or the private {PRIVATE}, verify with {SECRET} or the public {PUBLIC}"
        raise ConfigError(f"must begin with {' or '.join(kinds)}{kind and f', not {kind}'}", field=field, hint=hint)
    text = secret[len(kind) :]
    sizes, wanted = _SIZES[kind]
    hint = f"use {kind} and the base64 of {wanted} bytes"
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ConfigError(f"what follows {kind} is not base64", field=field, hint=hint) from None
    if len(raw) not in sizes:
        raise ConfigError(f"the {kind} secret has {len(raw)} bytes, not {wanted}", field=field, hint=hint)
    return raw if kind == SECRET else _ed25519_key(kind, raw, field)


def _ed25519_key(kind: str, raw: bytes, field: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        hint = "pip install 'redrive[crypto]'"
        raise MissingExtra("ed25519 keys need the package cryptography", field=field, hint=hint) from None
    if kind == PUBLIC:
        return ed25519.Ed25519PublicKey.from_public_bytes(raw)
    key = ed25519.Ed25519PrivateKey.from_private_bytes(raw[:32])
    if raw[32:] not in (b"", key.public_key().public_bytes_raw()):
        hint = "copy it again, or use its first 32 bytes alone"
        raise ConfigError(f"the public half of the {PRIVATE} key does not match its seed", field=field, hint=hint)
    return key


def _signature(key: Any, start: bytes, body: bytes) -> str:
    if not isinstance(key, bytes):
        return f"v1a,{_base64(key.sign(start + body))}"
    signature = hmac.new(key, start, "sha256")
    signature.update(body)
    return f"v1,{_base64(signature.digest())}"


def _matches(key: Any, given: Sequence[str], start: bytes, body: bytes) -> bool:
    if isinstance(key, bytes):
        expected = _signature(key, start, body).encode()
        return any(hmac.compare_digest(expected, each.encode(errors="surrogatepass")) for each in given)
    signed = start + body
    return any(_is_signed(key, each.removeprefix("v1a,"), signed) for each in given if each.startswith("v1a,"))


def _is_signed(key: Any, signature: str, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(b64decode(signature, validate=True), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _check_body(body: object) -> None:
    if not isinstance(body, bytes):
        hint = "use the bytes that are sent or were received, before any parsing"
        raise ConfigError(f"must be bytes, got {type(body).__name__}", field="body", hint=hint)
