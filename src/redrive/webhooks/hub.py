"""The edge's side of hubs: each connected hub is a worker here, whose requests are sent by the hub.

    POST /hub/connect  {hub, endpoints, concurrency}    -> {session, endpoints}
    POST /hub/next     {session, have}                  -> {deliveries}, within some seconds
    POST /hub/result   {session, id, delivery, response} -> {accepted}
    POST /hub/close    {session}

The worker leases, and settles by what the hub answered: the hub decides nothing. A hub that is silent for a minute is
disconnected; its worker gives back what it had, uncharged, and results that come later are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from redrive.app.internals import clock_of, handler_for, parts_of, store_of
from redrive.core import codec
from redrive.core.item import Instant, Item, Millis
from redrive.core.verbs import DocumentWrite
from redrive.engine.ids import new_id
from redrive.errors import NotFound, StoreError
from redrive.webhooks.delivery import POLICY, Request, Response
from redrive.webhooks.model import FAMILIES, HUB
from redrive.webhooks.tokens import ALL, HubRefused, Token, Tokens


logger = logging.getLogger("redrive.webhooks")

KIND = "webhook.hub"
POLL: Millis = 15_000
"""The longest answer to /hub/next; a hub asks again at once, which is its heartbeat."""
STALE: Millis = 60_000
LEASE: Millis = 60_000
MOST = 1_000
FAMILY = FAMILIES[1]


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
    have: tuple[tuple[str, int], ...] = ()


class Given(Struct, frozen=True):
    """One delivery. `delivery` is its number, which a result must name."""

    id: str
    delivery: int
    endpoint: str
    attempt: int
    request: Request


class Deliveries(Struct, frozen=True):
    deliveries: tuple[Given, ...] = ()


class Result(Struct, frozen=True):
    session: str
    id: str
    delivery: int
    response: Response


class Accepted(Struct, frozen=True):
    """False: another has the webhook by now, or it has ended; nothing was changed."""

    accepted: bool


class Close(Struct, frozen=True):
    session: str


class Hub(Struct, frozen=True):
    """A hub that is or was connected, as the store knows it."""

    name: str
    token: str
    endpoints: tuple[str, ...]
    connected_at: Instant
    seen_at: Instant
    connected: bool


class Session:
    """A connected hub, and the worker that leases for it."""

    def __init__(self, edge: Edge, asked: Connect, token: Token, endpoints: tuple[str, ...]) -> None:
        self.id = new_id()
        self.name = asked.hub
        self.token = token
        self.endpoints = endpoints
        self._relay = edge.relay
        self._clock = clock_of(edge.relay.app)
        self.connected_at = self._clock.now()
        self.seen = self._clock.monotonic()
        self._pending: dict[tuple[str, int], tuple[Given, asyncio.Future[Response]]] = {}
        self._more = asyncio.Event()
        self._concurrency = max(1, min(asked.concurrency, MOST))
        self.worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        handle = self._relay.delivery(self._send).handle
        queues = [FAMILY] if self.endpoints == ALL else [f"{HUB}:{each}" for each in self.endpoints]
        handlers = {
            queue: handler_for(queue, handle, policy=POLICY, lease=LEASE, concurrency=self._concurrency)
            for queue in queues
        }
        app = self._relay.app
        await parts_of(app).work(store_of(app), handlers, until_idle=False, grace="0s", most=self._concurrency)

    async def _send(self, item: Item, request: Request) -> Response:
        """Hands the request to the hub, and waits for what came of it. Cancelled when the hub is gone."""
        key = item.id, item.deliveries
        given = Given(item.id, item.deliveries, item.queue.partition(":")[2], item.attempt, request)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._pending[key] = given, answer
        self._more.set()
        try:
            return await answer
        finally:
            del self._pending[key]

    async def next(self, have: tuple[tuple[str, int], ...]) -> Deliveries:
        self.seen = self._clock.monotonic()
        end = self.seen + POLL
        while True:
            self._more.clear()
            open_ = [given for given, answer in self._pending.values() if not answer.done()]
            found = tuple([given for given in open_ if (given.id, given.delivery) not in have])
            left = end - self._clock.monotonic()
            if found or left <= 0 or self.worker.done():
                return Deliveries(found)
            await self._clock.wait(self._more, left)

    def result(self, result: Result) -> bool:
        self.seen = self._clock.monotonic()
        _, answer = self._pending.get((result.id, result.delivery), (None, None))
        if answer is None or answer.done():
            logger.warning("hub %s: a late result for webhook %s was refused", self.name, result.id)
            return False
        answer.set_result(result.response)
        return True

    async def close(self) -> None:
        self.worker.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self.worker})
        self._more.set()


class Edge:
    """`refused`: how many results were refused because they came too late, or from a hub that does not have it."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay
        self.sessions: dict[str, Session] = {}
        self.refused = 0

    def routes(self) -> list[Route]:
        paths = {"connect": self._connect, "next": self._next, "result": self._result, "close": self._close}
        return [Route(f"/hub/{name}", self._answering(function), methods=["POST"]) for name, function in paths.items()]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            for session in tuple(self.sessions.values()):
                await self._disconnect(session)

    async def _watch(self) -> None:
        clock = clock_of(self.relay.app)
        while True:
            await clock.sleep(POLL)
            for session in tuple(self.sessions.values()):
                if clock.monotonic() - session.seen > STALE or session.worker.done():
                    logger.warning("hub %s is gone: what it had is given back", session.name)
                    await self._disconnect(session)
                else:
                    await self._note(session, connected=True)

    async def _disconnect(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        await session.close()
        await self._note(session, connected=False)

    async def _note(self, session: Session, *, connected: bool) -> None:
        now = clock_of(self.relay.app).now()
        hub = Hub(session.name, session.token.id, session.endpoints, session.connected_at, now, connected)
        with suppress(StoreError):  # it is only shown
            await store_of(self.relay.app).write_documents([DocumentWrite(KIND, session.name, codec.encode(hub))])

    def _answering(self, function: Any) -> Any:
        async def answer(request: HttpRequest) -> HttpResponse:
            try:
                scheme, _, text = request.headers.get("authorization", "").partition(" ")
                token = await self.relay.tokens.check(text.strip() if scheme.lower() == "bearer" else "")
                done = await function(token, await request.body())
                return HttpResponse(msgspec.json.encode(done), media_type="application/json")
            except HubRefused as refused:
                code, message, status = refused.code, refused.message, refused.status
            except msgspec.MsgspecError as error:
                code, message, status = "BAD_REQUEST", str(error), 400
            except StoreError:
                code, message, status = "STORE_UNAVAILABLE", "the store does not answer", 503
            body = {"code": code, "error": message}
            return HttpResponse(msgspec.json.encode(body), status, media_type="application/json")

        return answer

    async def _connect(self, token: Token, body: bytes) -> Connected:
        asked = msgspec.json.decode(body, type=Connect)
        endpoints = await self._endpoints(asked, token)
        for session in tuple(self.sessions.values()):
            if (session.name, session.token.id) == (asked.hub, token.id):
                await self._disconnect(session)  # it came back before it was missed
        session = Session(self, asked, token, endpoints)
        self.sessions[session.id] = session
        await self._note(session, connected=True)
        return Connected(session.id, endpoints)

    async def _endpoints(self, asked: Connect, token: Token) -> tuple[str, ...]:
        for each in asked.endpoints:
            try:
                await self.relay.endpoints.get(each)
            except NotFound as error:
                raise HubRefused("ENDPOINT_NOT_FOUND", error.message, status=404) from None
            if token.endpoints != ALL and each not in token.endpoints:
                raise HubRefused("ENDPOINT_ACCESS_DENIED", f"the token does not serve {each}", status=403)
        chosen = asked.endpoints or token.endpoints
        if not chosen:
            raise HubRefused("NO_ENDPOINTS", "the token serves no endpoint", status=403)
        return tuple(chosen)

    def _session(self, token: Token, id: str) -> Session:
        session = self.sessions.get(id)
        if session is None or session.token.id != token.id:
            raise HubRefused("SESSION_UNKNOWN", "connect again", status=409)
        return session

    async def _next(self, token: Token, body: bytes) -> Deliveries:
        asked = msgspec.json.decode(body, type=Next)
        return await self._session(token, asked.session).next(asked.have)

    async def _result(self, token: Token, body: bytes) -> Accepted:
        result = msgspec.json.decode(body, type=Result)
        try:
            accepted = self._session(token, result.session).result(result)
        except HubRefused:
            self.refused += 1
            raise
        self.refused += not accepted
        return Accepted(accepted)

    async def _close(self, token: Token, body: bytes) -> Accepted:
        await self._disconnect(self._session(token, msgspec.json.decode(body, type=Close).session))
        return Accepted(True)


async def hubs(relay: Any) -> tuple[Hub, ...]:
    """Those that are or were connected, by name. One that was not seen for a minute is not connected."""
    now = clock_of(relay.app).now()
    found = [codec.decode(each.body, Hub) for each in await store_of(relay.app).documents(KIND)]
    return tuple([msgspec.structs.replace(hub, connected=hub.connected and now - hub.seen_at <= STALE) for hub in found])
