"""Bearer tokens for HTTP access: shown once, stored as a hash, each with scopes that the calling module defines."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import Instant
from redrive.core.quantity import shown
from redrive.core.verbs import DocumentWrite
from redrive.engine.ids import new_id
from redrive.errors import Conflict, NotFound
from redrive.office.settings import check_name, settings_entry
from redrive.stores.base import Store


class Token(Struct, frozen=True):
    """`scopes`: what the token permits. `hash`: that of the secret, which is not stored."""

    id: str
    name: str
    scopes: tuple[str, ...]
    hash: str
    created_at: Instant
    revoked_at: Instant | None = None


class Tokens:
    """The tokens of one `kind` of documents. `prefix`: the beginning of their texts."""

    def __init__(self, store: Store, kind: str, prefix: str, *, actor: str) -> None:
        self._store = store
        self._kind = kind
        self._prefix = prefix
        self._actor = actor

    async def create(self, name: str, scopes: tuple[str, ...], now: Instant) -> tuple[Token, str]:
        """The token, and its text, which is returned only here."""
        check_name(name, "name")
        secret = secrets.token_urlsafe(32)
        token = Token(secrets.token_hex(4), name, scopes, _hash(secret), now)
        await self._write(token, 0, "create", "created")
        return token, f"{self._prefix}_{token.id}_{secret}"

    async def list(self) -> tuple[Token, ...]:
        return tuple([codec.decode(each.body, Token) for each in await self._store.documents(self._kind)])

    async def revoke(self, id: str, now: Instant, *, reason: str) -> Token:
        """Revoke a token: it is refused from its next use on."""
        document = await self._store.document(self._kind, id)
        if document is None:
            raise NotFound(f"no token {shown(id)}", hint="list the tokens: the id is the part after the first _")
        token = codec.decode(document.body, Token)
        if token.revoked_at is None:
            token = replace(token, revoked_at=now)
            with suppress(Conflict):  # revoked meanwhile: nothing else changes a token
                await self._write(token, document.version, "revoke", reason)
        return token

    async def find(self, text: str) -> Token | None:
        """The token of this text, also if it was revoked."""
        prefix, _, rest = text.partition("_")
        name, _, secret = rest.partition("_")
        known = prefix == self._prefix and name.isalnum()
        document = await self._store.document(self._kind, name) if known else None
        token = None if document is None else codec.decode(document.body, Token)
        return token if token is not None and hmac.compare_digest(token.hash, _hash(secret)) else None

    async def _write(self, token: Token, expect: int, act: str, reason: str) -> None:
        change, settings = f"{self._kind.replace('.', '_')}_{act}", {"name": token.name, "scopes": list(token.scopes)}
        entry = settings_entry(change, token.id, settings, Act(self._actor, reason, new_id()))
        await self._store.write_documents([DocumentWrite(self._kind, token.id, codec.encode(token), expect)], entry)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
