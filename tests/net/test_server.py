"""The HTTP server: what it takes, what it cuts, and how it ends. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from redrive.errors import ConfigError, MissingExtra
from redrive.net import server, server_protocol
from redrive.net.server import Served, serving
from tests.support.listening import HOST

POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n"
LAST = POST + b"connection: close\r\n\r\nabc"
UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n\r\nabc"
SOON = 0.05


class Site:
    """`/` says how long the body was; `/early` answers before the body came; `/slow` waits until `go`."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        handlers = {"/": self._body, "/early": self._early, "/slow": self._slow}
        self.asgi = Starlette(routes=[Route(path, each, methods=["POST"]) for path, each in handlers.items()])

    async def _body(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"got {len(await request.body())}")

    async def _early(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("no", 413)

    async def _slow(self, request: Request) -> PlainTextResponse:
        self.asked.set()
        await self.go.wait()
        return PlainTextResponse("late")


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, *parts: bytes) -> bytes:
        """Each part in a packet of its own, and all that comes back until the other side closes."""
        heard = b""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            heard += await self._heard(0.01)
        return heard + await self._reader.read()

    async def drip(self, part: bytes, first: bytes = b"") -> bytes:
        """Again and again, until the other side closes."""
        heard = b""
        try:
            async with asyncio.timeout(30):
                self._writer.write(first)
                while not self._reader.at_eof():
                    self._writer.write(part)
                    await self._writer.drain()
                    heard += await self._heard(SOON / 5)
        except ConnectionError:
            pass
        return heard

    async def _heard(self, within: float) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.read(10_000), within)
        except TimeoutError:
            return b""


@asynccontextmanager
async def calling(served: Served) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(HOST, int(served.address.rpartition(":")[2]))
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


async def said(served: Served, *parts: bytes) -> bytes:
    async with calling(served) as caller:
        return await caller.say(*parts)


async def test_requests_one_after_the_other_and_in_pieces() -> None:
    async with serving(Site().asgi, HOST, 0) as served:
        assert served.address.startswith(f"{HOST}:")
        assert (await said(served, POST + b"\r\nabc" + LAST)).count(b"got 3") == 2
        async with calling(served) as caller:
            assert (await caller.say(POST[:9], POST[9:], b"connection: close\r\n", b"\r\na", b"bc")).endswith(b"got 3")


async def test_the_body_of_a_request_that_asks_for_http_2_is_not_lost() -> None:
    async with serving(Site().asgi, HOST, 0) as served:
        assert (await said(served, POST + UPGRADE + LAST)).count(b"got 3") == 2
        chunked = (POST + UPGRADE).replace(b"content-length: 3", b"transfer-encoding: chunked")[:-3]
        assert (await said(served, chunked + b"3\r\nabc\r\n0\r\n\r\n" + LAST)).count(b"got 3") == 2
        assert b" 400 " in await said(served, POST + UPGRADE + POST + UPGRADE), (
            "nobody may send a second one unanswered"
        )
        assert b" 400 " in await said(served, b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n")


@pytest.mark.parametrize("head", [b"POST / HTTP/1.1\r\nx: " + b"a" * 70_000, b"POST /" + b"a" * 70_000])
async def test_a_large_head_is_refused_whole_or_not(head: bytes) -> None:
    async with serving(Site().asgi, HOST, 0) as served:
        assert b" 431 " in await said(served, head + b"\r\n\r\n" if b"x:" in head else head)
        async with calling(served) as caller:
            assert b" 431 " in await caller.drip(b"x: " + b"a" * 5_000 + b"\r\n", POST)
        assert b"got 3" in await said(served, LAST)


async def test_what_stands_around_a_body_is_bounded() -> None:
    async with serving(Site().asgi, HOST, 0) as served:
        chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for start in (b"3;", b"3\r\nabc\r\n0\r\n"):
            async with calling(served) as caller:
                heard = await caller.drip(b"x: " + b"a" * 5_000 + (b"" if start == b"3;" else b"\r\n"), chunked + start)
                assert b"got" not in heard
        assert b" 400 " in await said(served, b"\x16\x03\x01")


async def test_a_slow_head_and_a_slow_rest_of_a_body_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_WITHIN", SOON)
    async with serving(Site().asgi, HOST, 0) as served:
        for drop in (b"x: y\r\n", b"\r\n"):
            async with calling(served) as caller:
                assert await caller.drip(drop, b"" if drop == b"\r\n" else POST) == b""
        assert await said(served) == b"", "nor may one say nothing"
        async with calling(served) as caller:
            # Not cut at once: it could not read the answer.
            assert b" 413 " in await caller.drip(b"a", POST.replace(b"/ ", b"/early ").replace(b"3", b"9999") + b"\r\n")
        async with calling(served) as caller:
            assert await caller.drip(b"\r\n", POST + b"\r\nabc") != b"", "after a request the time begins anew"
        assert b"got 3" in await said(served, LAST)


async def test_silent_connections_make_room_and_requests_beyond_the_limit_are_asked_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_protocol, "CONNECTIONS", 3)
    monkeypatch.setattr(server, "REQUESTS", 1)
    site = Site()
    async with AsyncExitStack() as silent, serving(site.asgi, HOST, 0) as served:
        for _ in range(10):
            await silent.enter_async_context(calling(served))
            assert b"got 3" in await said(served, LAST)
        async with calling(served) as caller:
            slow = asyncio.create_task(caller.say(POST.replace(b"/ ", b"/slow ") + b"connection: close\r\n\r\nabc"))
            await site.asked.wait()
            refused = (await said(served, LAST)).lower()
            assert refused.startswith(b"http/1.1 503")
            assert b"retry-after: 5" in refused
            site.go.set()
            assert (await slow).endswith(b"late"), "it had a request under way"


async def test_a_request_under_way_is_answered_at_the_end_and_no_new_one() -> None:
    site = Site()
    async with asyncio.TaskGroup() as group:
        async with serving(site.asgi, HOST, 0) as served:
            late = group.create_task(said(served, POST.replace(b"/ ", b"/slow ") + b"\r\nabc"))
            await site.asked.wait()
            asyncio.get_running_loop().call_later(SOON, site.go.set)
        with pytest.raises(ConnectionRefusedError):
            await said(served, LAST)
    assert late.result().endswith(b"late")


async def test_in_a_hurry_it_does_not_wait() -> None:
    site = Site()
    async with serving(site.asgi, HOST, 0) as served, calling(served) as caller:
        asking = asyncio.create_task(caller.say(POST.replace(b"/ ", b"/slow ") + b"\r\nabc"))
        await site.asked.wait()
        served.server.force_exit = True
    site.go.set()
    await asyncio.wait({asking})


async def test_an_address_that_cannot_be_used_is_told() -> None:
    async with serving(Site().asgi, HOST, 0) as served:
        port = int(served.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"http: cannot listen on {HOST}:{port}: Address already in use"):
            async with serving(Site().asgi, HOST, port):
                raise AssertionError
    with pytest.raises(ConfigError, match=r"cannot listen on 256\.0\.0\.1:0"):
        async with serving(Site().asgi, "256.0.0.1", 0):
            raise AssertionError


async def test_an_application_that_does_not_start_is_an_error_and_not_the_end_of_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def broken(app: Starlette) -> AsyncIterator[None]:
        if not app.debug:
            raise OSError("no disk")
        yield

    with pytest.raises(RuntimeError, match="did not start"):
        async with serving(Starlette(lifespan=broken), HOST, 0):
            raise AssertionError
    assert "no disk" in caplog.text


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install 'redrive\[webhooks\]'"):
        importlib.reload(server)
