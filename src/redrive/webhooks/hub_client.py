"""The hub: in a private network, it asks an edge for deliveries, forwards them, and reports what came of each."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from redrive.core.item import Millis
from redrive.core.validation import check_count, check_str_list
from redrive.engine.remote import POLL, TRAVEL
from redrive.errors import ConfigError
from redrive.net.guard import Guard
from redrive.net.http import HttpClient, HttpError
from redrive.net.messages import of_connection
from redrive.net.urls import check_http_url, check_token
from redrive.office.settings import check_name
from redrive.stores.clock import Clock, SystemClock
from redrive.webhooks import hub
from redrive.webhooks.delivery import Response, sent
from redrive.webhooks.hub import MOST, Accepted, Connect, Connected, Deliveries, Given, Next, Result
from redrive.webhooks.tokens import PERMANENT, HubRefused

logger = logging.getLogger("redrive.webhooks")
T = TypeVar("T")

CALL: Millis = 30_000
ANSWERS = 2 * hub.LARGEST
"""Bytes of an answer of the edge, in which bodies are base64."""
FIRST, LONGEST = 1_000, 60_000
"""The pauses between tries, each twice the one before; after a stable minute from the first one on."""
KEPT: Millis = 150_000
"""How long a result is kept that an edge which can be asked does not take. If the edge has restarted, the lease of its
webhook has to end before it is given again.
"""
STICKY = ": if several edges share this address, it needs sticky routing of /hub by the Authorization header"
"""What is logged when sessions are unknown again and again: each edge has its own."""
LAST_TRIES: Millis = 16_000
"""The pause from which on a hub that is told to stop gives up reporting."""
HEADER = 4_096


class EdgeUnreachable(Exception):
    """The edge did not answer, or cannot serve just now."""


class Work:
    """A webhook in hand. `again` is set when it was given again, under another number or in another session. `end`:
    after it the edge may give the webhook to another hub.
    """

    task: asyncio.Task[None]

    def __init__(self, session: str, given: Given, end: Millis) -> None:
        self.session = session
        self.given = given
        self.end = end
        self.again = asyncio.Event()


class WebhookHub:
    """`destinations`: URLs of its own by endpoint, in place of those that the edge has; every address may be called.

    The URLs of the edge may lead to public addresses, and to the networks in `allow`. `name`: that of the machine; give
    each hub its own, since one that connects takes the place of another with the same name and token.
    """

    def __init__(
        self,
        edge: str,
        token: str,
        *,
        name: str = "",
        endpoints: Iterable[str] = (),
        destinations: Mapping[str, str] | None = None,
        allow: Iterable[str] = (),
        concurrency: int = 10,
        clock: Clock | None = None,
    ) -> None:
        check_http_url(edge, field="edge", secret="token")  # noqa: S106 - the name of a parameter
        self._edge = edge.rstrip("/")
        self._token = check_token(token, field="token")
        self._name = check_name(name or socket.gethostname(), "name")
        hint = "give ids of endpoints, or leave it out for those of the token"
        self._endpoints = tuple(check_str_list(endpoints, field="endpoints", hint=hint))
        self._destinations = dict(destinations or {})
        for endpoint, url in self._destinations.items():
            check_http_url(url, field=f"destinations[{endpoint!r}]", secret="headers")  # noqa: S106 - as above
        self._concurrency = check_count(concurrency, field="concurrency", most=MOST, error=ConfigError)
        self._clock = SystemClock() if clock is None else clock
        self._calls = HttpClient(connections=self._concurrency + 2)
        self._guarded, self._own = HttpClient(guard=Guard(allow), packed=True), HttpClient(packed=True)
        self._stop = asyncio.Event()
        self._session = ""
        self._since = self._heard = self._clock.monotonic()
        self._asking: asyncio.Task[None] | None = None
        self._works: dict[str, Work] = {}

    async def run(self) -> None:
        """Until `stop`. Asks again with growing pauses; raises HubRefused when the edge refuses for good."""
        clients = (self._calls, self._guarded, self._own)
        for client in clients:
            await client.open()
        try:
            await self._ask_until_stopped()
            if self._works:
                await asyncio.wait([work.task for work in self._works.values()])
            if self._session:
                with suppress(EdgeUnreachable, HubRefused):  # it gives back what is left when it misses the hub
                    await self._call("close", Next(self._session), Accepted)
        finally:
            tasks = [work.task for work in self._works.values()] + ([self._asking] if self._asking else [])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in clients:
                await client.close()

    def stop(self) -> None:
        """Take nothing new, finish and report what is under way, and end."""
        self._stop.set()
        if self._asking is not None:
            self._asking.cancel()
        for work in self._works.values():
            work.again.set()

    async def _ask_until_stopped(self) -> None:
        pause, code = FIRST, ""
        while not self._stop.is_set():
            began = self._clock.monotonic()
            self._asking = asyncio.create_task(self._ask())
            await asyncio.wait({self._asking})
            if self._asking.cancelled():
                return
            error = self._asking.exception()
            if isinstance(error, HubRefused) and error.code not in PERMANENT:
                self._session = ""
            elif error is not None and not isinstance(error, EdgeUnreachable):
                raise error
            if self._clock.monotonic() - began > LONGEST:
                pause = FIRST
            before, code = code, error.code if isinstance(error, HubRefused) else ""
            hint = STICKY if before == code == "SESSION_UNKNOWN" and pause > FIRST else ""
            logger.warning("the edge does not serve: %s%s; again in %d s", error, hint, pause // 1000)
            await self._clock.wait(self._stop, pause)
            pause = min(pause * 2, LONGEST)

    async def _ask(self) -> None:
        """In one session, which outlives calls that fail: the edge ends it when the hub was silent for a minute."""
        if not self._session:
            asked = Connect(self._name, self._endpoints, self._concurrency)
            self._session = (await self._call("connect", asked, Connected)).session
            self._since = self._clock.monotonic()
            logger.info("hub %s is connected to %s", self._name, self._edge)
        while True:
            have = [work.given for work in self._works.values() if work.session == self._session]
            asked_next = Next(self._session, tuple([(given.id, given.delivery) for given in have]))
            asked_at = self._clock.monotonic()
            answer = await self._call("next", asked_next, Deliveries, within=POLL + CALL)
            self._heard = self._clock.monotonic()
            for given in answer.deliveries:
                self._begin(given, asked_at + answer.held + given.request.within + TRAVEL)

    def _begin(self, given: Given, end: Millis) -> None:
        """One request at a time for each webhook. What was given back while it was under way, as by an edge that was
        restarted, goes on under its new number.
        """
        work = self._works.get(given.id)
        if work is not None and work.given.turn == given.turn:
            work.session, work.given = self._session, given
            work.again.set()
            return
        if work is not None:
            work.task.cancel()  # another hub has had it since
        self._works[given.id] = work = Work(self._session, given, end)
        work.task = asyncio.create_task(self._forward(work))

    async def _forward(self, work: Work) -> None:
        given = work.given
        try:
            try:
                response = await self._send(given, work.end - self._clock.monotonic())
            except Exception as error:  # noqa: BLE001 - the edge must know, or the webhook is sent again and again
                response = Response(error=f"hub {self._name}: {type(error).__name__}: {error}")
            logger.info("webhook %s attempt %d: %s", given.id, given.attempt, response.said)
            headers = tuple([(_text(name), _text(value)) for name, value in response.headers])
            await self._report(work, replace(response, headers=headers, error=_text(response.error)))
        finally:
            if self._works.get(given.id) is work:
                del self._works[given.id]

    async def _send(self, given: Given, left: Millis) -> Response:
        own = self._destinations.get(given.endpoint)
        url, within = own or given.request.url, min(left, given.request.within)
        if not url:
            return Response(error=f"hub {self._name} has no destination for endpoint {given.endpoint}")
        if within <= 0:
            return Response(error=f"it took too long to hub {self._name}, and was not sent")
        if ours := [name for name, _ in given.request.headers if of_connection(name)]:  # the edge may be in wrong hands
            return Response(error=f"the header {ours[0]} belongs to the connection", denied=True)
        request = replace(given.request, url=url, within=within)
        return await sent(self._guarded if own is None else self._own, request)

    async def _report(self, work: Work, response: Response) -> None:
        """Until the edge has taken it or refused it: the target was called."""
        pause, whole = FIRST, response
        while True:
            work.again.clear()
            result = Result(work.session, work.given.id, work.given.delivery, response)
            last = self._heard - max(work.end, self._since) > KEPT
            try:
                if not (await self._call("result", result, Accepted)).accepted:
                    logger.warning("webhook %s: the edge has a result already, or another hub has it", result.id)
                return
            except EdgeUnreachable:
                last = last or (self._stop.is_set() and pause >= LAST_TRIES)
            except HubRefused as refused:
                if response is whole and refused.code in ("TOO_LARGE", "BAD_REQUEST"):
                    note = f"hub {self._name}: the edge refused the headers and the body: {refused.message}"
                    response = Response(whole.status, body=note.encode(), error=whole.error)
                    continue
                last, pause = last or self._stop.is_set() or refused.code != "SESSION_UNKNOWN", LONGEST
            if last:
                logger.warning("webhook %s: its result could not be reported; it will be sent again", result.id)
                return
            await self._clock.wait(work.again, pause)
            pause = min(pause * 2, LONGEST)

    async def _call(self, path: str, body: Any, answer: type[T], *, within: Millis = CALL) -> T:
        """Raises EdgeUnreachable and HubRefused. Each call may be repeated: one that is lost is sent again."""
        try:
            got = await self._calls.post(
                f"{self._edge}/hub/{path}",
                msgspec.json.encode(body),
                {"Content-Type": "application/json"},
                within=within,
                limit=ANSWERS,
                safe=True,
                token=self._token,
            )
            if got.status == 200:
                return msgspec.json.decode(got.body, type=answer)
            if got.status == 413:  # by the edge, or a proxy in front of it
                raise HubRefused("TOO_LARGE", "the request is too large")
            said = msgspec.json.decode(got.body, type=dict[str, str])
        except HttpError as error:
            raise EdgeUnreachable(str(error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise EdgeUnreachable("its answer is not that of an edge") from None
        if got.status >= 500 or "code" not in said:
            raise EdgeUnreachable(said.get("error", f"HTTP {got.status}"))
        raise HubRefused(said["code"], said.get("error", ""))


def _text(text: str) -> str:
    """As the edge takes it: not too long, and in UTF-8."""
    return text.encode(errors="replace")[:HEADER].decode(errors="ignore")
