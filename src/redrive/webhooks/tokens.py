"""Tokens of hubs: shown once, stored as a hash, each for some endpoints or for all."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from redrive import Redrive
from redrive.app.internals import clock_of, parts_of, store_of
from redrive.core import codec
from redrive.core.item import Instant
from redrive.core.quantity import shown
from redrive.core.validation import check_str_list
from redrive.core.verbs import DocumentWrite
from redrive.errors import ConfigError, Conflict, NotFound, RedriveError
from redrive.office.settings import check_name, record
from redrive.webhooks.endpoints import Endpoints

TOKEN = "webhook.token"  # noqa: S105 - the kind of a document
ALL = ("*",)
PREFIX = "rdh"
PERMANENT = {
    "TOKEN_MISSING": 401,
    "AUTH_FAILED": 401,
    "TOKEN_INVALID": 401,
    "TOKEN_REVOKED": 401,
    "NO_ENDPOINTS": 403,
    "ENDPOINT_ACCESS_DENIED": 403,
    "ENDPOINT_NOT_FOUND": 404,
}
"""Refusals after which a hub ends, and the statuses of their answers."""
PASSING = {"BAD_REQUEST": 400, "SESSION_UNKNOWN": 409, "TOO_LARGE": 413, "STORE_UNAVAILABLE": 503}
"""The others: a hub connects again, with growing pauses."""


class Token(Struct, frozen=True):
    """`endpoints`: the ids that it serves, or `*` for all. `hash`: of the secret, which is not stored."""

    id: str
    name: str
    endpoints: tuple[str, ...]
    hash: str
    created_at: Instant
    revoked_at: Instant | None = None


class HubRefused(RedriveError):
    """A hub may not do this. `code` says why, for programs; `status` is that of the HTTP answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {**PERMANENT, **PASSING}.get(code, 400)


class Tokens:
    def __init__(self, app: Redrive, endpoints: Endpoints) -> None:
        self._app = app
        self._endpoints = endpoints

    async def create(self, name: str, endpoints: Iterable[str] = ALL) -> tuple[Token, str]:
        """The token, and its text, which is shown here only."""
        check_name(name, "name")
        hint = "give ids of endpoints, or * for all"
        chosen = tuple(dict.fromkeys(check_str_list(endpoints, field="endpoints", hint=hint)))
        if not chosen:
            raise ConfigError("the token would serve nothing", field="endpoints", hint=hint)
        for each in () if "*" in chosen else chosen:
            if (await self._endpoints.get(each)).via != "hub":
                hint = "hubs serve endpoints made with via='hub'"
                raise ConfigError(f"endpoint {shown(each)} is not delivered to by hubs", field="endpoints", hint=hint)
        secret, now = secrets.token_urlsafe(32), clock_of(self._app).now()
        token = Token(secrets.token_hex(4), name, ALL if "*" in chosen else chosen, _hash(secret), now)
        await self._write(token, expect=0)
        await self._record("webhook_token_create", token, "created")
        return token, f"{PREFIX}_{token.id}_{secret}"

    async def list(self) -> tuple[Token, ...]:
        found = await store_of(self._app).documents(TOKEN)
        return tuple([codec.decode(document.body, Token) for document in found])

    async def revoke(self, id: str, *, reason: str = "revoked") -> Token:
        """Hubs that use it are refused from their next request on, and disconnected."""
        document = await store_of(self._app).document(TOKEN, id)
        if document is None:
            raise NotFound(f"no token {shown(id)}", hint="`redrive webhook token list` shows those there are")
        token = codec.decode(document.body, Token)
        if token.revoked_at is None:
            token = replace(token, revoked_at=clock_of(self._app).now())
            with suppress(Conflict):  # revoked meanwhile: nothing else changes a token
                await self._write(token, expect=document.version)
            await self._record("webhook_token_revoke", token, reason)
        return token

    async def check(self, header: str) -> Token:
        """The token of an Authorization header. Raises HubRefused."""
        scheme, _, text = header.strip().partition(" ")
        if not text:
            raise HubRefused("TOKEN_MISSING", "send the token as `Authorization: Bearer TOKEN`")
        if scheme.lower() != "bearer":
            raise HubRefused("AUTH_FAILED", "send the token as `Authorization: Bearer TOKEN`")
        prefix, _, rest = text.strip().partition("_")
        name, _, secret = rest.partition("_")
        document = await store_of(self._app).document(TOKEN, name) if prefix == PREFIX and name.isalnum() else None
        token = None if document is None else codec.decode(document.body, Token)
        if token is None or not hmac.compare_digest(token.hash, _hash(secret)):
            raise HubRefused("TOKEN_INVALID", "the token is not known")
        if token.revoked_at is not None:
            raise HubRefused("TOKEN_REVOKED", "the token was revoked")
        return token

    async def _write(self, token: Token, *, expect: int) -> None:
        await store_of(self._app).write_documents([DocumentWrite(TOKEN, token.id, codec.encode(token), expect)])

    async def _record(self, change: str, token: Token, reason: str) -> None:
        actor = parts_of(self._app).actor
        settings = {"name": token.name, "endpoints": list(token.endpoints)}
        await record(store_of(self._app), change, token.id, settings, actor=actor, reason=reason)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
