"""Keyring: AES-256-GCM encryption of bodies under keys with ids.

An encrypted body is a header (packing.sealed_header), a random nonce of 12 bytes, and the ciphertext with its tag. The
header, the id of the item and the purpose of the body (payload or result) are additional authenticated data, so that an
encrypted body does not decrypt in another place; for a schedule it is the schedule's name. With random nonces one key
is safe for 2**32 bodies.
"""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Literal

from redrive.errors import ConfigError, DecryptionFailed, MissingExtra
from redrive.stores.packing import SEALED, Packed, read_header, sealed_header

KEY_SIZE = 32
NONCE_SIZE = 12

Purpose = Literal["payload", "result", "schedule", "secret", "check"]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOW = "make one with: python -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())'"


class Keyring:
    """Encryption keys by id: 32 bytes each, or their base64. `current` encrypts; all of them decrypt."""

    __slots__ = ("_ciphers", "current")

    def __init__(self, keys: Mapping[str, bytes | str], *, current: str, field: str = "encryption") -> None:
        if not keys:
            raise ConfigError("it has no keys", field=field, hint="use Keyring({'k1': key}, current='k1')")
        if current not in keys:
            ids = ", ".join(map(repr, keys))
            raise ConfigError(f"the current key {current!r} is not among {ids}", field=field, hint="name one of them")
        read = {_checked_id(key_id, field): _key(key_id, key, field) for key_id, key in keys.items()}
        cipher = _cipher(field)
        self._ciphers: dict[str, Any] = {key_id: cipher(key) for key_id, key in read.items()}
        self.current = current

    @classmethod
    def parse(cls, text: str, *, field: str = "encryption_keys") -> Keyring:
        """From `id:base64` pairs, the current key first, separated by commas or line breaks."""
        keys: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in re.split(r"[,\n]", text))):
            key_id, colon, key = [text.strip() for text in part.partition(":")]
            if not colon:
                # The text may be a key without an id, and is not shown.
                raise ConfigError("a key has no id", field=field, hint="write id:base64 with commas between")
            if key_id in keys:
                raise ConfigError(f"key {key_id!r} is there twice", field=field, hint="give each key its own id")
            keys[key_id] = key
        return cls(keys, current=next(iter(keys), ""), field=field)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all keys, the current one first."""
        return (self.current, *[key_id for key_id in self._ciphers if key_id != self.current])

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.ids)}; current={self.current!r})"

    def seal(self, body: bytes, item_id: str, purpose: Purpose) -> Packed:
        """Encrypt a body with the current key."""
        header = sealed_header(body.packing if isinstance(body, Packed) else 0, self.current)
        nonce = self._nonce()
        kept = self._ciphers[self.current].encrypt(nonce, bytes(body), self._bound_to(header, item_id, purpose))
        return Packed(header + nonce + kept, SEALED)

    def open(self, body: Packed, item_id: str, purpose: Purpose) -> bytes:
        """Decrypt a body; a packed one stays packed. Raises DecryptionFailed."""
        packing, key_id, end = read_header(body)
        if key_id not in self._ciphers:
            raise key_missing(key_id)
        header, nonce, kept = bytes(body[:end]), bytes(body[end : end + NONCE_SIZE]), bytes(body[end + NONCE_SIZE :])
        from cryptography.exceptions import InvalidTag

        try:
            whole: bytes = self._ciphers[key_id].decrypt(nonce, kept, self._bound_to(header, item_id, purpose))
        except (InvalidTag, ValueError):
            raise DecryptionFailed(
                f"the body does not decrypt with key {key_id!r}",
                key=key_id,
                hint="check that all processes have the same key under this id; otherwise the body was damaged",
            ) from None
        return Packed(whole, packing) if packing else whole

    def seal_text(self, text: str, name: str) -> bytes:
        """Encrypt a secret of a document with the current key, bound to this name."""
        return bytes(self.seal(text.encode(), name, "secret"))

    def open_text(self, sealed: bytes, name: str) -> str:
        """Decrypt the output of `seal_text`. Raises DecryptionFailed."""
        return self.open(Packed(sealed, SEALED), name, "secret").decode()

    def _nonce(self) -> bytes:
        return os.urandom(NONCE_SIZE)

    def _bound_to(self, header: bytes, item_id: str, purpose: Purpose) -> bytes:
        """The additional authenticated data of a body. The header contains its length, and a purpose has no NUL."""
        return b"\0".join((purpose.encode(), header + item_id.encode(errors="surrogatepass")))


def key_missing(key_id: str) -> DecryptionFailed:
    return DecryptionFailed(
        f"encrypted with key {key_id!r}, which this process does not have",
        key=key_id,
        hint="give it the key, then replay the item if it is a letter",
    )


def _checked_id(key_id: object, field: str) -> str:
    if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
        hint = "use 1 to 64 of A-Z a-z 0-9 . _ -"
        # An invalid id may be a key in the wrong place, and is not shown.
        raise ConfigError("the id of a key is invalid", field=field, hint=hint)
    return key_id


def _key(key_id: str, key: object, field: str) -> bytes:
    if isinstance(key, str):
        try:
            key = b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"key {key_id!r} is not base64", field=field, hint=_HOW) from None
    if not isinstance(key, bytes):
        raise ConfigError(f"key {key_id!r} is a {type(key).__name__}", field=field, hint="use bytes, or base64 as text")
    if len(key) != KEY_SIZE:
        raise ConfigError(f"key {key_id!r} has {len(key)} bytes, not {KEY_SIZE}", field=field, hint=_HOW)
    return key


def _cipher(field: str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        hint = "pip install 'redrive[crypto]'"
        raise MissingExtra("encryption needs the package cryptography", field=field, hint=hint) from None
    return AESGCM


def check_keyring(value: object) -> Keyring:
    if not isinstance(value, Keyring):
        # The value may be a key, and is not shown.
        hint = "use Keyring({'k1': key}, current='k1')"
        raise ConfigError(f"a {type(value).__name__} is not a Keyring", field="encryption", hint=hint)
    return value
