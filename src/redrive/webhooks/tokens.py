"""Tokens of hubs: each serves some endpoints, or all."""

from __future__ import annotations

from collections.abc import Iterable

from redrive import Redrive
from redrive.app.internals import clock_of, parts_of, store_of
from redrive.core.quantity import shown
from redrive.core.validation import check_str_list
from redrive.errors import ConfigError, RedriveError
from redrive.office.tokens import Token
from redrive.office.tokens import Tokens as Stored
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
PASSING = {
    "BAD_REQUEST": 400,
    "SESSION_UNKNOWN": 409,
    "TOO_LARGE": 413,
    "TOO_MANY_HUBS": 429,
    "EDGE_STOPPING": 503,
    "STORE_UNAVAILABLE": 503,
}
"""The others: a hub connects again, with growing pauses."""


class HubRefused(RedriveError):
    """A hub may not do this. `code` says why, for programs; `status` is that of the HTTP answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {**PERMANENT, **PASSING}.get(code, 400)


class Tokens:
    """The scopes of a token are the ids of the endpoints that it serves, or `*` for all."""

    def __init__(self, app: Redrive, endpoints: Endpoints) -> None:
        self._app = app
        self._endpoints = endpoints

    @property
    def _stored(self) -> Stored:
        return Stored(store_of(self._app), TOKEN, PREFIX, actor=parts_of(self._app).actor)

    async def create(self, name: str, endpoints: Iterable[str] = ALL) -> tuple[Token, str]:
        """The token, and its text, which is shown here only."""
        hint = "give ids of endpoints, or * for all"
        chosen = tuple(dict.fromkeys(check_str_list(endpoints, field="endpoints", hint=hint)))
        if not chosen:
            raise ConfigError("the token would serve nothing", field="endpoints", hint=hint)
        for each in () if "*" in chosen else chosen:
            if (await self._endpoints.get(each)).via != "hub":
                hint = "hubs serve endpoints made with via='hub'"
                raise ConfigError(f"endpoint {shown(each)} is not delivered to by hubs", field="endpoints", hint=hint)
        return await self._stored.create(name, ALL if "*" in chosen else chosen, clock_of(self._app).now())

    async def list(self) -> tuple[Token, ...]:
        return await self._stored.list()

    async def revoke(self, id: str, *, reason: str = "revoked") -> Token:
        """Hubs that use it are refused from their next request on, and disconnected."""
        return await self._stored.revoke(id, clock_of(self._app).now(), reason=reason)

    async def check(self, header: str) -> Token:
        """The token of an Authorization header. Raises HubRefused."""
        scheme, _, text = header.strip().partition(" ")
        if not text or scheme.lower() != "bearer":
            code = "AUTH_FAILED" if text else "TOKEN_MISSING"
            raise HubRefused(code, "send the token as `Authorization: Bearer TOKEN`")
        token = await self._stored.find(text.strip())
        if token is None:
            raise HubRefused("TOKEN_INVALID", "the token is not known")
        if token.revoked_at is not None:
            raise HubRefused("TOKEN_REVOKED", "the token was revoked")
        return token
