"""R17, the tool: a link treats what passes just as it is told.

The server behind it answers each line by the same line.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.support.links import connection
from tests.support.links.conditions import (
    BlackHole,
    Clear,
    CutAfter,
    CutReply,
    CutRequest,
    HalfClosed,
    Latency,
    Refuse,
    Side,
    Sliced,
)
from tests.support.links.connection import RESET_ON_CLOSE
from tests.support.links.link import LOOPBACK, Link
from tests.support.listening import listening
from tests.support.rig.patience import eventually

LIMIT = 10.0
"""Seconds after which something did not happen."""


class Server:
    """Answers each line by the line, and remembers what it heard and how its clients left."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.gone: list[str] = []
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
                await writer.drain()
            self.gone.append("end")
        except ConnectionError:
            self.gone.append("reset")
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with listening(made.talk) as made.port:
        yield made


@pytest.fixture
def link(server: Server) -> Iterator[Link]:
    with Link((LOOPBACK, server.port)) as made:
        yield made


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, text: bytes) -> bytes:
        self.writer.write(text + b"\n")
        return await self.hear()

    async def hear(self) -> bytes:
        return (await asyncio.wait_for(self.reader.readline(), LIMIT)).rstrip(b"\n")


Dial = Callable[[], Awaitable[Client]]


@pytest.fixture
async def call(link: Link) -> AsyncIterator[Dial]:
    made: list[Client] = []

    async def dial() -> Client:
        client = Client(*await asyncio.open_connection(LOOPBACK, link.port))
        made.append(client)
        return client

    yield dial
    for client in made:
        client.writer.close()


async def test_everything_goes_through_and_is_counted(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    assert await client.say(b"hello") == b"hello"
    assert await (await call()).say(b"again") == b"again"
    counts = link.counts
    assert (counts.connections, counts.up, counts.down, counts.cuts) == (2, 12, 12, 0)
    assert link.open == 2


async def test_much_goes_through_in_order(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    lines = [f"line {number} {'x' * 500}".encode() for number in range(2_000)]
    client.writer.write(b"\n".join(lines) + b"\n")
    assert [await client.hear() for _ in lines] == lines


async def test_a_goodbye_is_passed_on(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    await client.say(b"hello")
    client.writer.write_eof()
    assert await client.hear() == b""
    await eventually(lambda: server.gone == ["end"] and link.open == 0, limit=LIMIT, what="all are gone")


async def test_a_reset_of_the_client_is_passed_on(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    await client.say(b"hello")
    client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.writer.transport.abort()
    await eventually(lambda: server.gone == ["reset"], limit=LIMIT, what="the server hears of it")


async def test_a_server_that_is_not_there_resets_its_clients() -> None:
    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            return await asyncio.wait_for(reader.readline(), LIMIT)
        finally:
            writer.close()

    with socket.socket() as taken:
        # Nobody listens at it, and nobody else will meanwhile.
        taken.bind((LOOPBACK, 0))
        with Link((LOOPBACK, taken.getsockname()[1])) as lonely, pytest.raises(ConnectionResetError):
            await ask(lonely.port)


async def test_latency_delays_both_ways_and_keeps_the_pace(link: Link, call: Dial) -> None:
    client = await call()
    await client.say(b"quick")
    link.set(Latency(0.1))
    began = time.monotonic()
    client.writer.write(b"".join(b"%d\n" % number for number in range(50)))
    assert [await client.hear() for _ in range(50)] == [b"%d" % number for number in range(50)]
    took = time.monotonic() - began
    assert took >= 0.2
    # Fifty that waited for each other would have taken fifty times as long.
    assert took < 50 * 0.2


async def test_refuse_resets_whoever_connects_until_it_heals(link: Link, call: Dial) -> None:
    before = await call()
    await before.say(b"hello")
    link.set(Refuse())
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            await call()
    assert await before.say(b"still here") == b"still here"
    link.heal()
    assert await (await call()).say(b"back") == b"back"
    assert link.counts.connections == 2


async def test_reset_ends_what_is_there_and_nothing_else(link: Link, server: Server, call: Dial) -> None:
    clients = [await call(), await call()]
    for client in clients:
        await client.say(b"hello")
    assert link.reset() == 2
    for client in clients:
        with pytest.raises(ConnectionResetError):
            await client.hear()
    await eventually(lambda: server.gone == ["reset", "reset"], limit=LIMIT, what="the server hears of it")
    assert await (await call()).say(b"new") == b"new"


async def test_a_black_hole_is_silent_and_gives_back_what_it_took(link: Link, server: Server, call: Dial) -> None:
    before = await call()
    await before.say(b"hello")
    link.set(BlackHole())
    new = await call()
    before.writer.write(b"one\n")
    new.writer.write(b"two\n")
    new.writer.close()  # its owner has given up
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(before.reader.readline(), 0.1)
    assert (server.heard, server.gone) == ([b"hello\n"], [])
    link.heal()
    assert await before.hear() == b"one"
    await eventually(lambda: b"two\n" in server.heard, limit=LIMIT, what="the late request arrives")


async def test_a_black_hole_can_be_reset(link: Link, server: Server, call: Dial) -> None:
    before = await call()
    await before.say(b"hello")
    link.set(BlackHole())
    before.writer.write(b"lost\n")
    assert link.reset() == 1
    with pytest.raises(ConnectionResetError):
        await before.hear()
    link.heal()
    assert await (await call()).say(b"new") == b"new"
    assert server.heard == [b"hello\n", b"new\n"]


async def test_half_closed_the_answers_end_and_the_requests_arrive(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    await client.say(b"hello")
    link.set(HalfClosed())
    assert await client.hear() == b""
    assert await client.say(b"heard") == b""
    await eventually(lambda: server.heard == [b"hello\n", b"heard\n"], limit=LIMIT, what="the request arrives")
    assert await (await call()).hear() == b""  # new ones are no better


async def test_half_closed_upwards_the_server_sees_the_end(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    await client.say(b"hello")
    link.set(HalfClosed(Side.UP))
    await eventually(lambda: server.gone == ["end"], limit=LIMIT, what="the server sees the end")
    assert await client.hear() == b""


async def test_slices_arrive_one_by_one() -> None:
    pieces: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            pieces.append(piece)
        writer.close()

    async with listening(listen) as port:
        with Link((LOOPBACK, port)) as slicing:
            slicing.set(Sliced())
            _, writer = await asyncio.open_connection(LOOPBACK, slicing.port)
            writer.write(b"x" * 1000)
            writer.close()
            await eventually(lambda: sum(map(len, pieces)) == 1000, limit=LIMIT, what="all arrives")
            # How many meet in the buffer of the system is not ours to say.
            assert slicing.counts.pieces == 1000


@pytest.mark.parametrize(("side", "heard"), [(Side.DOWN, [b"hello\n"]), (Side.UP, [])])
async def test_cut_after_n_bytes(link: Link, server: Server, call: Dial, side: Side, heard: list[bytes]) -> None:
    link.set(CutAfter(3, side))
    client = await call()
    client.writer.write(b"hello\n")
    if side is Side.DOWN:
        assert await asyncio.wait_for(client.reader.readexactly(3), LIMIT) == b"hel"
    with pytest.raises(ConnectionResetError):
        await client.hear()
    assert server.heard == heard
    assert link.counts.cuts == 1


async def test_cut_after_counts_for_each_connection_from_when_it_was_set(link: Link, call: Dial) -> None:
    clients = [await call(), await call()]
    for client in clients:
        await client.say(b"much before")
    link.set(CutAfter(4))
    for client in clients:
        assert await client.say(b"123") == b"123"
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await client.say(b"4")
    assert link.counts.cuts == 2


async def test_cut_request_it_never_arrives(link: Link, server: Server, call: Dial) -> None:
    client = await call()
    link.set(CutRequest(b"settle", times=1))
    assert await client.say(b"lease") == b"lease"
    with pytest.raises(ConnectionResetError):
        await client.say(b"settle 1")
    assert await (await call()).say(b"settle 2") == b"settle 2"
    assert server.heard == [b"lease\n", b"settle 2\n"]


async def test_cut_reply_it_arrives_and_the_answer_is_not_seen(link: Link, server: Server, call: Dial) -> None:
    client, other = await call(), await call()
    link.set(CutReply(b"settle"))
    assert await client.say(b"lease") == b"lease"
    with pytest.raises(ConnectionResetError):
        await client.say(b"settle 1")
    assert server.heard == [b"lease\n", b"settle 1\n"]
    assert await other.say(b"lease") == b"lease"
    with pytest.raises(ConnectionResetError):
        await other.say(b"settle 2")
    assert link.counts.cuts == 2
    link.set(Clear())
    assert await (await call()).say(b"settle 3") == b"settle 3"


async def test_cut_reply_a_mark_in_two_pieces_and_a_question_as_mark(link: Link, server: Server, call: Dial) -> None:
    link.set(CutReply(lambda sent: sent.startswith(b"set") and sent.endswith(b"tle\n"), times=1))
    client = await call()
    client.writer.write(b"set")
    await eventually(lambda: link.counts.up == 3, limit=LIMIT, what="the first half is there")
    with pytest.raises(ConnectionResetError):
        await client.say(b"tle")
    assert server.heard == [b"settle\n"]
    assert await (await call()).say(b"settle") == b"settle"


async def test_cut_reply_waits_for_the_whole_answer(
    link: Link, server: Server, call: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers in parts has not finished with the first."""
    # On a busy machine the thread of this server may stand still for longer than a real one does between two parts.
    monkeypatch.setattr(connection, "QUIET", 1.0)
    client = await call()
    link.set(CutReply(b"0 "))
    lines = [f"{number} {'x' * 60_000}".encode() for number in range(20)]
    client.writer.write(b"\n".join(lines) + b"\n")
    with pytest.raises(ConnectionResetError):
        await client.hear()
    assert len(server.heard) == len(lines)


async def test_only_new_or_only_existing_connections(link: Link, call: Dial) -> None:
    before = await call()
    await before.say(b"hello")
    link.set(CutAfter(0), existing=False)
    assert await before.say(b"fine") == b"fine"
    with pytest.raises(ConnectionResetError):
        await (await call()).say(b"not fine")
    link.heal()
    again = await call()
    await again.say(b"hello")
    link.set(CutAfter(0), new=False)
    assert await (await call()).say(b"fine") == b"fine"
    with pytest.raises(ConnectionResetError):
        await again.say(b"not fine")


def test_the_url_of_a_link() -> None:
    with Link.to("postgresql://me:secret@127.0.0.1:5432/db?schema=x") as link:
        assert link.through("postgresql://me:secret@127.0.0.1:5432/db?schema=x") == (
            f"postgresql://me:secret@127.0.0.1:{link.port}/db?schema=x"
        )
        assert link.through("redis://localhost:6379/0") == f"redis://127.0.0.1:{link.port}/0"
