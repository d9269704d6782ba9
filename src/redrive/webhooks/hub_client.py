"""The hub: in a private network, it asks an edge for deliveries, forwards them, and reports what came of each."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from redrive.core.item import Millis
from redrive.core.validation import check_count
from redrive.errors import ConfigError
from redrive.net.guard import Guard
from redrive.net.http import HttpClient, HttpError
from redrive.net.urls import check_http_url, check_token
from redrive.stores.clock import Clock, SystemClock
from redrive.webhooks.delivery import BODY_LIMIT, Response, direct
from redrive.webhooks.hub import MOST, POLL, Accepted, Close, Connect, Connected, Deliveries, Given, Next, Result
from redrive.webhooks.tokens import HubRefused

logger = logging.getLogger("redrive.webhooks")
T = TypeVar("T")

CALL: Millis = 30_000
ANSWERS = 64 * 1024 * 1024
"""Bytes of deliveries in one answer of the edge."""
FIRST, LONGEST = 1_000, 60_000
PERMANENT = frozenset(
    ("TOKEN_MISSING", "TOKEN_INVALID", "TOKEN_REVOKED", "NO_ENDPOINTS", "ENDPOINT_NOT_FOUND", "ENDPOINT_ACCESS_DENIED")
)
"""To ask again would not help: the hub ends."""


class EdgeUnreachable(Exception):
    """The edge did not answer, or cannot serve just now."""


class WebhookHub:
    """`destinations`: URLs of its own by endpoint, in place of those that the edge has; every address may be called.

    The URLs of the edge may lead to public addresses, and to the networks in `allow`.
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
        check_http_url(edge, field="edge", secret="token=...")
        self._edge = edge.rstrip("/")
        self._token = check_token(token, field="token")
        self._name = name or socket.gethostname()
        self._endpoints = tuple(endpoints)
        self._destinations = dict(destinations or {})
        for endpoint, url in self._destinations.items():
            check_http_url(url, field=f"destinations[{endpoint!r}]", secret="a header of the endpoint")
        self._concurrency = check_count(concurrency, field="concurrency", most=MOST, error=ConfigError)
        self._clock = SystemClock() if clock is None else clock
        self._calls = HttpClient(connections=self._concurrency + 2)
        self._guarded, self._own = HttpClient(guard=Guard(allow), packed=True), HttpClient(packed=True)
        self._stop = asyncio.Event()
        self._have: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until `stop`. Connects again with growing pauses; raises HubRefused when the edge refuses for good."""
        clients = (self._calls, self._guarded, self._own)
        for client in clients:
            await client.open()
        try:
            pause = FIRST
            while not self._stop.is_set():
                began = self._clock.monotonic()
                try:
                    await self._serve()
                except EdgeUnreachable as error:
                    if self._clock.monotonic() - began > LONGEST:
                        pause = FIRST
                    logger.warning("the edge does not serve: %s; again in %d s", error, pause // 1000)
                    await self._clock.wait(self._stop, pause)
                    pause = min(pause * 2, LONGEST)
        finally:
            await self._finish()
            for client in clients:
                await client.close()

    def stop(self) -> None:
        """Take nothing new, finish what is under way, and end."""
        self._stop.set()

    async def _serve(self) -> None:
        asked = Connect(self._name, self._endpoints, self._concurrency)
        session = (await self._call("connect", asked, Connected)).session
        logger.info("hub %s is connected to %s", self._name, self._edge)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                asking = asyncio.create_task(
                    self._call("next", Next(session, tuple(self._have)), Deliveries, within=POLL + CALL)
                )
                await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
                    break
                for given in asking.result().deliveries:
                    self._begin(session, given)
            await self._finish()
            await self._call("close", Close(session), Accepted)
        except HubRefused as refused:
            if refused.code in PERMANENT:
                raise
            raise EdgeUnreachable(refused.message) from None
        finally:
            stopping.cancel()

    def _begin(self, session: str, given: Given) -> None:
        key = given.id, given.delivery
        if key not in self._have:
            self._have[key] = task = asyncio.create_task(self._forward(session, given))
            task.add_done_callback(lambda _: self._have.pop(key, None))

    async def _finish(self) -> None:
        if self._have:
            await asyncio.wait(set(self._have.values()))

    async def _forward(self, session: str, given: Given) -> None:
        url = self._destinations.get(given.endpoint)
        request = given.request if url is None else msgspec.structs.replace(given.request, url=url)
        send = direct(self._guarded if url is None else self._own)
        response = await send(None, request) if request.url else Response(error="no destination", denied=False)
        logger.info("webhook %s attempt %d: %s", given.id, given.attempt, response.said)
        pause = FIRST
        while True:  # the target was called: the edge has to know, or the webhook is sent again
            try:
                await self._call("result", Result(session, given.id, given.delivery, response), Accepted)
                return
            except HubRefused as refused:
                logger.warning("webhook %s: the edge refused the result: %s", given.id, refused.message)
                return
            except EdgeUnreachable:
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST)

    async def _call(self, path: str, body: Any, answer: type[T], *, within: Millis = CALL) -> T:
        headers = {"Content-Type": "application/json"}
        try:
            got = await self._calls.post(
                f"{self._edge}/hub/{path}",
                msgspec.json.encode(body),
                headers,
                within=within,
                limit=ANSWERS,
                token=self._token,
            )
            if got.status == 200:
                return msgspec.json.decode(got.body, type=answer)
            said = msgspec.json.decode(got.body, type=dict[str, str])
        except HttpError as error:
            raise EdgeUnreachable(str(error)) from None
        except msgspec.MsgspecError:
            raise EdgeUnreachable("its answer is not that of an edge") from None
        if got.status >= 500:
            raise EdgeUnreachable(said.get("error", str(got.status)))
        raise HubRefused(said.get("code", ""), said.get("error", ""), status=got.status)
