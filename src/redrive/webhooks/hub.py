"""The edge's side of hubs: each connected hub is a worker here, whose requests are sent by the hub.

    POST /hub/connect  {hub, endpoints, concurrency}     -> {session, endpoints}
    POST /hub/next     {session, have}                   -> {deliveries, held}, within some seconds
    POST /hub/result   {session, id, delivery, response} -> {accepted}
    POST /hub/close    {session}

The worker leases while the hub asks (`engine.remote`), and settles by what it answered: the hub decides nothing. A hub
that is silent for a minute is disconnected; what it had is given back, uncharged, and results that come later are
refused. What is refused is answered by {code, error}: see `tokens`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from redrive.app.internals import clock_of, handler_for, parts_of, store_of
from redrive.core import codec
from redrive.core.item import Instant, Item, Millis
from redrive.core.quantity import shown
from redrive.core.verbs import DocumentWrite
from redrive.engine.ids import new_id
from redrive.engine.remote import POLL, Job, Late, Remote
from redrive.errors import ConfigError, StoreError
from redrive.events import SettleRefused
from redrive.office.settings import check_name
from redrive.office.tokens import Token
from redrive.webhooks.delivery import BODY_LIMIT, POLICY, Request, Response
from redrive.webhooks.model import FAMILIES, HUB, WEEK, endpoint_id
from redrive.webhooks.tokens import ALL, HubRefused, Tokens

logger = logging.getLogger("redrive.webhooks")

KIND = "webhook.hub"
STALE: Millis = 60_000
LEASE: Millis = 90_000
"""A third of it may be over when a delivery is given; what is left outlasts the request, should the edge crash."""
GRACE = "30s"
"""For what hubs have when the app is told to stop: they may still report."""
MOST = 100
"""Deliveries that a hub may have at once, and hubs that may be connected with one token."""
ANSWER = 8 * 1024 * 1024
"""Bytes of bodies in an answer to /hub/next, unless a single one is larger."""
LARGEST = 4 * ANSWER
"""Bytes of a body that a hub takes."""
SMALL = 128 * 1024
LIMITS = {"result": 4 * 1024 * 1024}
"""Bytes of a request: headers and the body of an answer, both bounded by the hub. SMALL for the others."""
FAMILY = FAMILIES[1]
Number = tuple[str, int]
"""The id of a webhook, and which of its deliveries."""


class Connect(Struct, frozen=True):
    hub: str
    endpoints: tuple[str, ...] = ()
    concurrency: int = 10


class Connected(Struct, frozen=True):
    session: str
    endpoints: tuple[str, ...]


class Next(Struct, frozen=True):
    """`have`: the deliveries that the hub works on. What it was given and does not have is given again."""

    session: str
    have: tuple[Number, ...] = ()


class Given(Struct, frozen=True):
    """One delivery. `delivery` is its number, which a result must name. `turn` changes with each recorded result: of
    two deliveries in the same one, the first was given back without any.
    """

    id: str
    delivery: int
    endpoint: str
    attempt: int
    turn: str
    request: Request


class Deliveries(Struct, frozen=True):
    """`held`: how long the edge had the question. From when it was asked and this, a hub knows the end of a request."""

    deliveries: tuple[Given, ...] = ()
    held: Millis = 0


class Result(Struct, frozen=True):
    session: str
    id: str
    delivery: int
    response: Response


class Accepted(Struct, frozen=True):
    """False: the hub does not have this delivery, or no more; nothing was changed."""

    accepted: bool


class Hub(Struct, frozen=True):
    """A hub that is or was connected, as the store knows it. `token` is the id of its token."""

    name: str
    token: str
    endpoints: tuple[str, ...]
    connected_at: Instant
    seen_at: Instant
    connected: bool


class Session:
    """A connected hub, and the worker that leases for it."""

    def __init__(self, relay: Any, asked: Connect, token: Token, endpoints: tuple[str, ...]) -> None:
        self.id = new_id()
        self.name = asked.hub
        self.token = token
        self.endpoints = endpoints
        self._relay = relay
        self._clock = clock_of(relay.app)
        self.connected_at = self._clock.now()
        self.remote: Remote[Given, Response] = Remote(f"hub {self.name}", self._clock, most_bytes=ANSWER)
        self.worker = asyncio.create_task(self._work(max(1, min(asked.concurrency, MOST))))

    async def _work(self, slots: int) -> None:
        handle, app = self._relay.delivery(self._send).handle, self._relay.app
        queues = [FAMILY] if self.endpoints == ALL else [f"{HUB}:{each}" for each in self.endpoints]
        handlers = {
            queue: handler_for(queue, handle, policy=POLICY, lease=LEASE, concurrency=slots) for queue in queues
        }
        options: dict[str, Any] = {"grace": GRACE, "most": slots, "demand": self.remote.demand}
        try:
            await parts_of(app).work(store_of(app), handlers, until_idle=False, **options)
        except Exception:
            logger.exception("the worker of hub %s ended", self.name)
        finally:
            self.remote.close()

    async def _send(self, item: Item, make: Callable[[], Request]) -> Response:
        """Hands the request to the hub, and waits for what came of it."""
        key, endpoint, turn = (item.id, item.deliveries), endpoint_id(item.queue), f"{item.replays}.{item.errors}"

        def job() -> Job[Given]:
            request = make()
            return Job(Given(*key, endpoint, item.attempt, turn, request), request.within, len(request.body))

        if (size := job().size) > LARGEST:
            return Response(error=f"a body of {size:,} bytes is too large for a hub", denied=True)
        try:
            return await self.remote.work(key, job)
        except Late as late:
            return Response(error=str(late))

    async def close(self, *, idle: bool = False) -> None:
        """`idle`: by its own word, the hub has no request under way."""
        self.remote.close(idle=idle)
        self.worker.cancel()
        await asyncio.wait({self.worker})

    def hub(self, *, connected: bool) -> Hub:
        seen_at = self._clock.now() - (self._clock.monotonic() - self.remote.seen)
        return Hub(self.name, self.token.id, self.endpoints, self.connected_at, seen_at, connected)


class Edge:
    def __init__(self, relay: Any) -> None:
        self.relay = relay
        self.sessions: dict[str, Session] = {}
        self._watcher: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        calls: dict[str, tuple[Any, Any]] = {
            "connect": (self._connect, Connect),
            "next": (self._next, Next),
            "result": (self._result, Result),
            "close": (self._close, Next),
        }
        return [Route(f"/hub/{name}", self._answering(name, *call), methods=["POST"]) for name, call in calls.items()]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        app.state.edge = self
        try:
            yield
        finally:
            await self._disconnect(*self.sessions.values())
            if self._watcher is not None:
                self._watcher.cancel()
                await asyncio.wait({self._watcher})

    async def _watch(self) -> None:
        """While there are sessions. An outage of the store keeps hubs from being heard: then none is silent, until a
        minute after it, which is the longest pause of a hub between two tries.
        """
        clock, excused = clock_of(self.relay.app), 0
        while self.sessions:
            await clock.sleep(POLL)
            sessions = tuple(self.sessions.values())
            try:
                await self._note(sessions, connected=True)
                await self._end_revoked()
            except StoreError:
                excused = clock.monotonic() + STALE
            silent = clock.monotonic() - STALE
            over = [each for each in sessions if each.worker.done() or max(each.remote.seen, excused) < silent]
            for session in over:
                logger.warning("hub %s is gone: what it had is given back", session.name)
            await self._disconnect(*over)

    async def _disconnect(self, *sessions: Session, idle: bool = False) -> None:
        ours = [session for session in sessions if self.sessions.pop(session.id, None) is not None]
        await asyncio.gather(*(session.close(idle=idle) for session in ours))
        with suppress(StoreError):  # as in _connect
            await self._note(ours, connected=False)
        for session in ours:
            logger.info("hub %s is disconnected", session.name)

    async def _end_revoked(self) -> None:
        revoked = {token.id for token in await self.relay.tokens.list() if token.revoked_at is not None}
        await self._disconnect(*[session for session in self.sessions.values() if session.token.id in revoked])

    async def _note(self, sessions: Collection[Session], *, connected: bool) -> None:
        for_now = [session.hub(connected=connected) for session in sessions]
        writes = [DocumentWrite(KIND, _key(hub), codec.encode(hub)) for hub in for_now]
        await store_of(self.relay.app).write_documents(writes)

    def _answering(self, name: str, function: Any, kind: Any) -> Any:
        async def answer(request: HttpRequest) -> HttpResponse:
            try:
                token = await self._token(request)
                asked = msgspec.json.decode(await _body(request, LIMITS.get(name, SMALL)), type=kind)
                done = await function(request, token, asked)
                return HttpResponse(msgspec.json.encode(done), media_type="application/json")
            except HubRefused as error:
                refused = error
                if error.code == "TOKEN_REVOKED":
                    with suppress(StoreError):
                        await self._end_revoked()
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError, ClientDisconnect) as error:
                refused = HubRefused("BAD_REQUEST", str(error))
            except StoreError:
                refused = HubRefused("STORE_UNAVAILABLE", "the store does not answer")
            body = {"code": refused.code, "error": refused.message}
            return HttpResponse(msgspec.json.encode(body), refused.status, media_type="application/json")

        return answer

    async def _token(self, request: HttpRequest) -> Token:
        tokens: Tokens = self.relay.tokens
        return await tokens.check(request.headers.get("authorization", ""))

    async def _connect(self, _: HttpRequest, token: Token, asked: Connect) -> Connected:
        check_name(asked.hub, "hub")
        endpoints = await self._endpoints(asked, token)
        # It came back before it was missed: at most one session has what is under way.
        while same := [each for each in self.sessions.values() if (each.name, each.token.id) == (asked.hub, token.id)]:
            await self._disconnect(*same)
        if self.relay.stopping:
            raise HubRefused("EDGE_STOPPING", "the edge is being stopped; connect again")
        if sum(each.token.id == token.id for each in self.sessions.values()) >= MOST:
            raise HubRefused("TOO_MANY_HUBS", f"{MOST} hubs are connected with this token; use another one for more")
        session = Session(self.relay, asked, token, endpoints)
        self.sessions[session.id] = session
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        with suppress(StoreError):  # it is only shown
            await self._note([session], connected=True)
            await self._forget_old()
        return Connected(session.id, endpoints)

    async def _endpoints(self, asked: Connect, token: Token) -> tuple[str, ...]:
        known = {endpoint.id: endpoint for endpoint in await self.relay.endpoints.list()}
        for each in asked.endpoints:
            if each not in known:
                raise HubRefused("ENDPOINT_NOT_FOUND", f"no endpoint {shown(each)}")
            if (token.scopes != ALL and each not in token.scopes) or known[each].via != "hub":
                raise HubRefused("ENDPOINT_ACCESS_DENIED", f"the token does not serve {each}, or no hub does")
        chosen = tuple(dict.fromkeys(asked.endpoints or token.scopes))
        found = chosen if chosen == ALL else tuple([each for each in chosen if each in known])
        if not found:
            raise HubRefused("NO_ENDPOINTS", "no endpoint of the token exists")
        return found

    async def _forget_old(self) -> None:
        week_ago = clock_of(self.relay.app).now() - WEEK
        old = [hub for hub in await hubs(self.relay) if hub.seen_at < week_ago]
        await store_of(self.relay.app).write_documents([DocumentWrite(KIND, _key(hub), None) for hub in old])

    def _session(self, token: Token, id: str) -> Session:
        session = self.sessions.get(id)
        if session is None or session.token.id != token.id or session.worker.done():
            raise HubRefused("SESSION_UNKNOWN", "connect again")
        return session

    async def _next(self, request: HttpRequest, token: Token, asked: Next) -> Deliveries:
        session = self._session(token, asked.session)
        gone = asyncio.ensure_future(request.receive())  # all that can still come is that the hub is gone
        try:
            # The token may be revoked while the hub waits.
            return Deliveries(*await session.remote.poll(frozenset(asked.have), gone, partial(self._token, request)))
        finally:
            gone.cancel()

    async def _result(self, _: HttpRequest, token: Token, result: Result) -> Accepted:
        if not 0 <= result.response.status < 1000 or len(result.response.body) > BODY_LIMIT:
            raise ConfigError("it is not the result of a request", field="response")
        accepted = False
        try:
            session = self._session(token, result.session)
            accepted = session.remote.report((result.id, result.delivery), result.response)
        finally:
            if not accepted:
                worker, why = f"hub token {token.name}", "it is late, or not of the hub that has the webhook"
                late = SettleRefused(worker, FAMILY, result.id[:64], result.delivery, why)
                parts_of(self.relay.app).events.emit(late)
        return Accepted(accepted)

    async def _close(self, _: HttpRequest, token: Token, asked: Next) -> Accepted:
        await self._disconnect(self._session(token, asked.session), idle=True)
        return Accepted(True)


def _key(hub: Hub) -> str:
    return f"{hub.token} {hub.name}"


async def _body(request: HttpRequest, limit: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise HubRefused("TOO_LARGE", f"at most {limit:,} bytes are taken")
    return bytes(body)


async def hubs(relay: Any) -> tuple[Hub, ...]:
    """Those that are or were connected in the last week, by name. One not seen for a minute is not connected."""
    now = clock_of(relay.app).now()
    found = [codec.decode(each.body, Hub) for each in await store_of(relay.app).documents(KIND)]
    known = [msgspec.structs.replace(hub, connected=hub.connected and now - hub.seen_at <= STALE) for hub in found]
    return tuple(sorted(known, key=lambda hub: hub.name))
