"""Connections to a web server: kept, closed, broken, secret; each with one question at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from redrive.receipts import _lines
from redrive.receipts._http import CutOff, Garbled, Reply
from redrive.receipts._lines import Lines
from tests.stores.test_redis_wire import Certificate
from tests.support.listening import HOST, Talk, listening

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each question with what `answers` has for it, or with ok. `asked`: the questions of each connection."""

    def __init__(self) -> None:
        self.answers: list[bytes | Talk] = []
        self.asked: list[list[bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        self.asked.append(mine)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                mine.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if self.answers else OK
                if not isinstance(answer, bytes):
                    await answer(reader, writer)
                    break
                writer.write(answer)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    async with listening(server.serve, context) as server.port:
        yield server


@asynccontextmanager
async def lines_to(url: str, most: int = 5) -> AsyncIterator[Lines]:
    lines = Lines(url, {"Accept": "text/plain"}, most)
    await lines.open()
    yield lines
    await lines.close()


async def ask(lines: Lines, body: bytes = b"hello", key: str = "key-1", *, safe: bool = False) -> Reply:
    return await lines.ask(key, body, 1_000, lambda _: False, safe=safe)


async def test_a_question_as_it_goes_over_the_wire() -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}/a b/ä?x=1 2") as lines:
        reply = await ask(lines)
    assert (reply.status, reply.body) == (200, b"ok")
    assert server.asked == [
        [
            b"POST /a%20b/%C3%A4?x=1%202 HTTP/1.1\r\n"
            b"Host: 127.0.0.1:" + str(server.port).encode() + b"\r\n"
            b"Accept: text/plain\r\nIdempotency-Key: key-1\r\nContent-Length: 5\r\n\r\nhello"
        ]
    ]


async def test_a_connection_is_used_again_and_again() -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        for _ in range(3):
            await ask(lines)
    assert [len(questions) for questions in server.asked] == [3]


async def test_there_are_no_more_connections_than_allowed() -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}", most=2) as lines:
        await asyncio.gather(*(ask(lines) for _ in range(7)))
    assert len(server.asked) == 2
    assert sum(len(questions) for questions in server.asked) == 7


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + OK,
    ],
)
async def test_a_connection_that_is_not_to_be_kept_is_not(answer: bytes) -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        server.answers = [answer]
        assert (await ask(lines)).body == b"ok"
        assert (await ask(lines)).body == b"ok"
    assert [len(questions) for questions in server.asked] == [1, 1]


async def test_a_connection_that_is_closed_or_speaks_unasked_while_it_rests_is_left() -> None:
    rests = asyncio.Event()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()

    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await rests.wait()
        writer.write(OK)
        await reader.read()

    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        server.answers = [close, chatter]
        for _ in range(2):
            assert (await ask(lines)).body == b"ok"
            rests.set()
            await asyncio.wait([line.gone for line in lines._all])  # noqa: SLF001 - nobody else is told
            rests.clear()
        assert (await ask(lines)).body == b"ok"
    assert [len(questions) for questions in server.asked] == [1, 1, 1]


async def test_a_connection_that_rested_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "KEPT", 0.0)
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        await ask(lines)
        await ask(lines)
    assert len(server.asked) == 2


async def test_whoever_gives_up_leaves_the_connection_to_nobody() -> None:
    begun = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()

    async with serving() as server, lines_to(f"http://{HOST}:{server.port}", most=1) as lines:
        server.answers = [hangs]
        asking = asyncio.create_task(ask(lines))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await ask(lines)).body == b"ok"
    assert len(server.asked) == 2


async def _gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    return


async def _half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK[:-1])
    writer.close()
    await writer.wait_closed()


async def _other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n\r\n")
    await reader.read()


@pytest.mark.parametrize(
    ("answer", "kind", "safe"),
    [
        (_gone, ConnectionResetError, False),
        (_half, CutOff, True),
        (_other, Garbled, True),
    ],
)
async def test_what_may_have_been_seen_is_not_asked_again(answer: Talk, kind: type[Exception], safe: bool) -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        await ask(lines)
        server.answers = [answer]
        with pytest.raises(kind):
            await ask(lines, safe=safe)
    assert [len(questions) for questions in server.asked] == [2]


async def test_a_rested_connection_that_closes_without_a_word_is_replaced_once_if_that_is_safe() -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        await ask(lines)
        server.answers = [_gone]
        assert (await ask(lines, safe=True)).body == b"ok"
        server.answers = [_gone, _gone]
        with pytest.raises(ConnectionResetError):
            await ask(lines, safe=True)
    assert [len(questions) for questions in server.asked] == [2, 2, 1]
    assert server.asked[0][1] == server.asked[1][0], "the key too"


async def test_a_new_connection_that_closes_without_a_word_has_said_no() -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        server.answers = [_gone]
        with pytest.raises(ConnectionResetError):
            await ask(lines, safe=True)
    assert [len(questions) for questions in server.asked] == [1]


async def test_an_answer_before_all_was_sent() -> None:
    over = asyncio.Event()
    asked = 0

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await over.wait()
        writer.transport.abort()

    async with listening(early) as port, lines_to(f"http://{HOST}:{port}") as lines:
        for _ in range(2):
            assert (await ask(lines, b"x" * 20_000_000)).status == 413
        over.set()
    assert asked == 2, "what was half sent would be the beginning of the next question"


async def test_closing_ends_what_is_under_way() -> None:
    begun = asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()

    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        server.answers = [hangs]
        asking = asyncio.create_task(ask(lines))
        await begun.wait()
        await lines.close()
        with pytest.raises(ConnectionError):
            await asking


@pytest.mark.parametrize("key", ["a\r\nX: y", "a\nb", "a\0"])
async def test_a_key_cannot_smuggle_a_header_in(key: str) -> None:
    async with serving() as server, lines_to(f"http://{HOST}:{server.port}") as lines:
        with pytest.raises(ValueError, match="header"):
            await ask(lines, key=key)
    assert server.asked == []


def test_a_name_in_any_script_is_asked_for_as_dns_has_it() -> None:
    head = Lines("http://bücher.example:8080/x", {}, 1)._head  # noqa: SLF001 - no such server can be had here
    assert "\r\nHost: xn--bcher-kva.example:8080\r\n" in head


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Certificate]:
    folder: Path = tmp_path_factory.mktemp("tls")
    return Certificate(folder, "ours", f"IP:{HOST}"), Certificate(folder, "elsewhere", "DNS:elsewhere.example")


async def test_a_known_certificate_is_asked_and_no_other(
    certificates: tuple[Certificate, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, elsewhere = certificates
    for shown, trusted, says in (
        (ours, ours, ""),
        (ours, elsewhere, "certificate verify failed"),
        (elsewhere, elsewhere, "IP address mismatch"),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted.path))
        async with serving(shown.context()) as server, lines_to(f"https://{HOST}:{server.port}") as lines:
            if says:
                with pytest.raises(ssl.SSLError, match=says):
                    await ask(lines)
                assert server.asked == []
            else:
                assert (await ask(lines, b"x" * 300_000)).body == b"ok"
                assert (await ask(lines)).body == b"ok"
                assert [len(questions) for questions in server.asked] == [2]
