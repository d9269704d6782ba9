"""The edge's side of hubs: each connected hub is a worker here, whose requests are sent by the hub.

    POST /hub/connect  {hub, endpoints, concurrency}     -> {session, endpoints}
    POST /hub/next     {session, have}                   -> {deliveries, held}, within some seconds
    POST /hub/result   {session, id, delivery, response} -> {accepted}
    POST /hub/close    {session}

The worker leases, and settles by what the hub answered: the hub decides nothing. A hub that is silent for a minute is
disconnected; what it had is given back, uncharged, and results that come later are refused. What is refused is answered
by {code, error}: see `tokens`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from redrive import Snooze
from redrive.app.internals import clock_of, handler_for, parts_of, store_of
from redrive.core import codec
from redrive.core.item import Instant, Item, Millis
from redrive.core.quantity import shown
from redrive.core.verbs import DocumentWrite
from redrive.engine.ids import new_id
from redrive.errors import ConfigError, StoreError
from redrive.office.settings import check_name
from redrive.office.tokens import Token
from redrive.webhooks.delivery import BODY_LIMIT, POLICY, Request, Response
from redrive.webhooks.model import FAMILIES, HUB, WEEK
from redrive.webhooks.tokens import ALL, HubRefused

logger = logging.getLogger("redrive.webhooks")

KIND = "webhook.hub"
POLL: Millis = 15_000
"""The longest answer to /hub/next; a hub asks again at once, which is its heartbeat."""
STALE: Millis = 60_000
LEASE: Millis = 90_000
"""A third of it may be over when a delivery is given; what is left outlasts the request, should the edge crash."""
TRAVEL: Millis = 10_000
"""What a delivery may take to its hub; the time of a later one is cut, so that the edge knows when it is over."""
GRACE = "30s"
"""For what hubs have when the app is told to stop: they may still report."""
MOST = 100
"""Deliveries that a hub may have at once."""
ANSWER = 8 * 1024 * 1024
"""Bytes of bodies in an answer to /hub/next, unless a single one is larger."""
LARGEST = 4 * ANSWER
"""Bytes of a body that a hub takes."""
SMALL = 128 * 1024
LIMITS = {"result": 2 * 1024 * 1024}
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


class Waiting:
    """A delivery that waits for its result. `until`: when its request is over in any case; None: not given yet."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.until: Millis | None = None
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()


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
        self.seen = self._clock.monotonic()
        self._waiting: dict[Number, Waiting] = {}
        self._more = asyncio.Event()
        self._closed = False
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
        try:
            await parts_of(app).work(store_of(app), handlers, until_idle=False, grace=GRACE, most=self._concurrency)
        except Exception:
            logger.exception("the worker of hub %s ended", self.name)
        finally:
            self._more.set()

    async def _send(self, item: Item, request: Request) -> Response:
        """Hands the request to the hub, and waits for what came of it."""
        if self._closed:
            raise Snooze("0s", note=f"hub {self.name} is gone")
        if len(request.body) > LARGEST:
            return Response(error=f"a body of {len(request.body):,} bytes is too large for a hub", denied=True)
        turn = f"{item.replays}.{item.errors}"
        given = Given(item.id, item.deliveries, item.queue.partition(":")[2], item.attempt, turn, request)
        key = item.id, item.deliveries
        self._waiting[key] = waiting = Waiting(given)
        self._more.set()
        try:
            return await waiting.answer
        finally:
            del self._waiting[key]

    async def next(self, have: Collection[Number]) -> Deliveries:
        self.seen = self._clock.monotonic()
        began = self.seen
        while not self.worker.done():
            self._more.clear()
            found, now = self._chosen(frozenset(have)), self._clock.monotonic()
            if found:
                self.seen = now
            if found or now >= began + POLL:
                return Deliveries(found, now - began)
            await self._clock.wait(self._more, began + POLL - now)
        raise HubRefused("SESSION_UNKNOWN", "connect again")

    def _chosen(self, have: Collection[Number]) -> tuple[Given, ...]:
        found: list[Given] = []
        size, now = 0, self._clock.monotonic()
        for key, waiting in self._waiting.items():
            if key in have or waiting.answer.done():
                continue
            size += len(waiting.given.request.body)
            if found and size > ANSWER:
                break
            waiting.until = now + waiting.given.request.within + TRAVEL
            found.append(waiting.given)
        return tuple(found)

    def result(self, result: Result) -> bool:
        self.seen = self._clock.monotonic()
        waiting = self._waiting.get((result.id, result.delivery))
        if waiting is None or waiting.until is None or waiting.answer.done():
            return False
        waiting.answer.set_result(result.response)
        return True

    def over(self) -> bool:
        """Its worker has ended; or the hub is silent for so long that its last request is over."""
        return self.worker.done() or self._clock.monotonic() - self.seen > STALE

    async def close(self) -> None:
        """What the hub was given is not given to others while a request for it may be under way."""
        self._closed = True
        for waiting in self._waiting.values():
            if waiting.until is not None and not waiting.answer.done():
                left = max(0, waiting.until - self._clock.monotonic()) / 1000
                note = f"hub {self.name} is gone, and may have delivered it"
                waiting.answer.set_exception(Snooze(left, note=note))
        self.worker.cancel()  # after them, so that handlers end by that, and nothing more is leased
        await asyncio.wait({self.worker})

    def hub(self, *, connected: bool) -> Hub:
        seen_at = self._clock.now() - max(0, self._clock.monotonic() - self.seen)
        return Hub(self.name, self.token.id, self.endpoints, self.connected_at, seen_at, connected)


class Edge:
    """`refused`: how many results were refused because they came too late, or from a hub that does not have it."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay
        self.sessions: dict[str, Session] = {}
        self.refused = 0
        self._watcher: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        paths = {"connect": self._connect, "next": self._next, "result": self._result, "close": self._close}
        return [
            Route(f"/hub/{name}", self._answering(function, LIMITS.get(name, SMALL)), methods=["POST"])
            for name, function in paths.items()
        ]

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
        clock = clock_of(self.relay.app)
        while self.sessions:
            await clock.sleep(POLL)
            sessions = tuple(self.sessions.values())
            try:
                await self._note(sessions, connected=True)
                await self._end_revoked()
            except StoreError:
                for session in sessions:
                    session.seen = clock.monotonic() + STALE
            over = [session for session in sessions if session.over()]
            for session in over:
                logger.warning("hub %s is gone: what it had is given back", session.name)
            await self._disconnect(*over)

    async def _disconnect(self, *sessions: Session) -> None:
        ours = [session for session in sessions if self.sessions.pop(session.id, None) is not None]
        await asyncio.gather(*(session.close() for session in ours))
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

    def _answering(self, function: Any, limit: int) -> Any:
        async def answer(request: HttpRequest) -> HttpResponse:
            header = request.headers.get("authorization", "")
            try:
                token = await self.relay.tokens.check(header)
                done = await function(token, await _body(request, limit))
                if isinstance(done, Deliveries):
                    await self.relay.tokens.check(header)  # it may have been revoked while the hub waited
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

    async def _connect(self, token: Token, body: bytes) -> Connected:
        asked = msgspec.json.decode(body, type=Connect)
        check_name(asked.hub, "hub")
        endpoints = await self._endpoints(asked, token)
        # It came back before it was missed: at most one session has what is under way.
        while same := [each for each in self.sessions.values() if (each.name, each.token.id) == (asked.hub, token.id)]:
            await self._disconnect(*same)
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
        if session is None or session.token.id != token.id:
            raise HubRefused("SESSION_UNKNOWN", "connect again")
        return session

    async def _next(self, token: Token, body: bytes) -> Deliveries:
        asked = msgspec.json.decode(body, type=Next)
        return await self._session(token, asked.session).next(asked.have)

    async def _result(self, token: Token, body: bytes) -> Accepted:
        result = msgspec.json.decode(body, type=Result)
        if not 0 <= result.response.status < 1000 or len(result.response.body) > BODY_LIMIT:
            raise ConfigError("it is not the result of a request", field="response")
        try:
            accepted = self._session(token, result.session).result(result)
        except HubRefused:
            self.refused += 1
            raise
        if not accepted:
            self.refused += 1
            logger.warning("a late or repeated result for webhook %s was refused", result.id)
        return Accepted(accepted)

    async def _close(self, token: Token, body: bytes) -> Accepted:
        await self._disconnect(self._session(token, msgspec.json.decode(body, type=Next).session))
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
