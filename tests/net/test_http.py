"""The HTTP client over real sockets: what it sends, what it reads, and what it never does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from redrive.errors import ConfigError, TargetDenied
from redrive.net import http
from redrive.net.guard import Guard
from redrive.net.http import HttpAnswer, HttpClient, Tls
from tests.support.listening import HOST, listening

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LONG = 20_000
TOKEN = "t0ps3cret"  # noqa: S105 - not one of anybody's
LOCAL = Guard(["127.0.0.0/8"])


@asynccontextmanager
async def client(**options: object) -> AsyncIterator[HttpClient]:
    made = HttpClient(**options)  # type: ignore[arg-type]
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def post(made: HttpClient, url: str, **options: object) -> HttpAnswer:
    given = {"within": LONG, "limit": 1000, **options}
    return await made.post(url, b"{}", {"X-One": "1"}, **given)


def saying(*answers: bytes, heard: list[bytes] | None = None, close: bool = True) -> Serve:
    """Answers one request after the other on each connection, and then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            if heard is not None:
                heard.append(head)
            writer.write(answer)
            await writer.drain()
        if close:
            writer.close()

    return serve


async def test_a_request_and_its_answer() -> None:
    heard: list[bytes] = []
    answer = b"HTTP/1.1 503 No\r\nretry-after: 7\r\nContent-Length: 4\r\n\r\nbusy"
    async with listening(saying(answer, heard=heard)) as port, client() as made:
        got = await post(made, f"http://{HOST}:{port}/in?q=1")
    assert (got.status, got.body, got.whole, got.headers["Retry-After"]) == (503, b"busy", True, "7")
    assert heard[0].startswith(b"POST /in?q=1 HTTP/1.1\r\n")
    assert b"X-One: 1\r\n" in heard[0]


async def test_a_token_and_a_key_are_sent_and_the_token_is_in_no_answer() -> None:
    heard: list[bytes] = []
    told = b"HTTP/1.1 401 No\r\nContent-Length: 12\r\n\r\nno t0ps3cret"
    async with listening(saying(told, heard=heard)) as port, client() as made:
        got = await post(made, f"http://{HOST}:{port}/", token=TOKEN, key="k-1")
    assert (got.body, got.key) == (b"no [redacted]", "k-1")
    assert b"Authorization: Bearer t0ps3cret\r\n" in heard[0]
    assert b"Idempotency-Key: k-1\r\n" in heard[0]


async def test_a_token_is_in_no_error_and_a_key_must_fit_into_a_header() -> None:
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: t0ps3cret\r\nContent-Length: 2\r\n\r\nok"
    async with listening(saying(packed)) as port, client() as made:
        with pytest.raises(http.BrokenAnswer, match=r"content encoding '\[redacted\]'"):
            await post(made, f"http://{HOST}:{port}/", token=TOKEN)
        with pytest.raises(http.Unsendable, match="value of the header Idempotency-Key contains a control character"):
            await post(made, f"http://{HOST}:{port}/", key="two\nlines")


async def test_repeated_headers_go_out_and_come_in_with_every_value_in_order() -> None:
    heard: list[bytes] = []
    told = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nset-cookie: b=2\r\nX-A: 3\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
    given = [("X-Sig", "v1"), ("X-Other", "a"), ("x-sig", "v2"), ("Authorization", "mine"), ("X-Sig", "é")]
    async with listening(saying(told, heard=heard)) as port, client() as made:
        got = await made.post(f"http://{HOST}:{port}/", b"{}", given, within=LONG, limit=9, token=TOKEN)
    sent = heard[0].decode().split("\r\n")
    ours = ("X-Sig", "X-Other", "Authorization")
    assert [line for line in sent if line.startswith(ours)] == [
        "X-Sig: v1",
        "X-Other: a",
        "X-Sig: v2",
        "X-Sig: é",
        f"Authorization: Bearer {TOKEN}",
    ]
    assert got.headers["SET-COOKIE"] == "b=2"
    pairs = [(name.lower(), value) for name, value in got.headers.items()]
    assert pairs == [("x-a", "1"), ("set-cookie", "b=2"), ("x-a", "3"), ("set-cookie", "a=1"), ("content-length", "0")]


async def test_a_value_of_bytes_that_are_utf_8_is_sent_as_it_is() -> None:
    heard: list[bytes] = []
    async with listening(saying(OK, heard=heard)) as port, client() as made:
        values = ["caf\u00e9 \u20ac".encode().decode("latin-1"), "caf\u00e9"]
        await made.post(f"http://{HOST}:{port}/", b"{}", [("X-A", each) for each in values], within=LONG, limit=9)
    sent = [line for line in heard[0].split(b"\r\n") if line.startswith(b"X-A")]
    assert sent == ["X-A: caf\u00e9 \u20ac".encode(), "X-A: caf\u00e9".encode()]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("X-One", "a\r\nX-Two: b", "the value of the header X-One contains a control character"),
        ("X-One", "a\nb", "the value of the header X-One"),
        ("X-One", "a\0b", "the value of the header X-One"),
        ("X-One", "☃", "the value of the header X-One contains a control character or one outside Latin-1"),
        ("X-Two: b\r\nX-One", "a", r"'X-Two: b\\r\\nX-One' is not a header name"),
        ("", "a", "'' is not a header name"),
        ("X-Öne", "a", "'X-Öne' is not a header name"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_named_and_nothing_arrives(name: str, value: str, said: str) -> None:
    called: list[bool] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.append(True)
        await saying(OK)(reader, writer)

    async with listening(serve) as port, client() as made:
        url = f"http://{HOST}:{port}/"
        for headers in ({name: value}, [("X-One", "fine"), (name, value)]):
            with pytest.raises(http.Unsendable, match=said):
                await made.post(url, b"{}", headers, within=LONG, limit=9)
        assert called == []
        await post(made, url)
    assert called == [True]


async def test_another_method() -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with listening(serve) as port, client() as made:
        got = await made.request("GET", f"http://{HOST}:{port}/hook", b"", {}, within=LONG, limit=9)
        with pytest.raises(http.Unsendable):
            await made.request("GET /x HTTP/1.1\r\nX:", f"http://{HOST}:{port}/", b"", {}, within=LONG, limit=9)
    assert (got.status, got.body, len(heard)) == (200, b"ok", 1)
    assert heard[0].startswith(b"GET /hook HTTP/1.1\r\n")
    assert b"content-" not in heard[0].lower()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_s4_a_redirect_is_an_answer_and_never_followed(status: int) -> None:
    heard: list[bytes] = []
    async with listening(saying(OK, heard=heard)) as inner:
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: http://{HOST}:{inner}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with listening(saying(moved)) as port, client() as made:
            assert (await post(made, f"http://{HOST}:{port}/")).status == status
    assert heard == []


async def test_s4_proxies_and_passwords_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text(f"machine {HOST} login ann password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    heard: list[bytes] = []
    async with listening(saying(OK, heard=heard)) as port, client() as made:
        assert (await post(made, f"http://{HOST}:{port}/")).body == b"ok"
    assert b"Authorization" not in heard[0]


SPELLINGS = [
    "127.0.0.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "localhost",
    "localhost.",
    "0",
    "0.0.0.0",  # noqa: S104 - dialled, not bound
    "[::]",
    "\uff11\uff12\uff17.0.0.1",
    "127.0.0.1%2f@8.8.8.8",
]


@pytest.mark.parametrize("host", SPELLINGS)
async def test_s2_no_spelling_of_this_machine_is_dialled_under_a_guard(host: str) -> None:
    heard: list[bytes] = []
    async with listening(saying(OK, heard=heard)) as port, client(guard=Guard()) as made:
        with pytest.raises((TargetDenied, http.HttpError)):
            await post(made, f"http://{host}:{port}/")
    assert heard == []


async def test_s3_a_name_is_looked_up_once_and_one_denied_address_denies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answers(_: object, host: str, port: int = 0, family: object = None) -> list[dict[str, object]]:
        asked.append(host)
        found = ["8.8.8.8", "127.0.0.1"] if host == "mixed.example" else ["127.0.0.1"]
        return [{"hostname": host, "host": each, "port": port, "family": 2, "proto": 0, "flags": 0} for each in found]

    monkeypatch.setattr("aiohttp.ThreadedResolver.resolve", answers)
    heard: list[bytes] = []
    async with listening(saying(OK, OK, heard=heard)) as port:
        async with client(guard=Guard()) as made:
            for name in ("mixed.example", "rebound.example"):
                with pytest.raises(TargetDenied, match=f"{name} leads to 127.0.0.1, which is not public"):
                    await post(made, f"http://{name}:{port}/")
        assert (asked, heard) == (["mixed.example", "rebound.example"], [])
        async with client(guard=LOCAL) as made:
            assert (await post(made, f"http://rebound.example:{port}/")).status == 200
            assert (await post(made, f"http://rebound.example:{port}/")).status == 200
    assert asked[2:] == ["rebound.example"], "a connection that is kept needs no look-up"
    assert all(b"Host: rebound.example" in head for head in heard)


def test_s4_a_proxy_under_a_guard_must_be_declared_to_filter() -> None:
    with pytest.raises(ConfigError, match="the addresses that a proxy dials cannot be checked"):
        HttpClient(guard=Guard(), proxy="http://proxy.example:3128")
    HttpClient(guard=Guard(), proxy="http://proxy.example:3128", proxy_filters=True)


async def test_a_proxy_that_is_configured_gets_the_request() -> None:
    heard: list[bytes] = []
    async with listening(saying(OK, heard=heard)) as port, client(proxy=f"http://{HOST}:{port}") as made:
        assert (await post(made, "http://target.example/in")).body == b"ok"
    assert heard[0].startswith(b"POST http://target.example/in HTTP/1.1\r\n")


async def test_no_more_than_the_limit_is_read() -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000
    async with listening(saying(long)) as port, client() as made:
        got = await post(made, f"http://{HOST}:{port}/", limit=10)
    assert (got.body, got.whole) == (b"x" * 10, False)


async def test_a_stream_is_left_when_there_is_enough() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst\n\n")
        await writer.drain()
        await reader.read()

    async with listening(serve) as port, client() as made:
        got = await post(made, f"http://{HOST}:{port}/", enough=lambda part: part.body.endswith(b"\n\n"))
    assert got.body == b"first\n\n"


async def test_one_deadline_is_for_the_whole_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await writer.drain()
        await reader.read()

    async with listening(serve) as port, client() as made:
        with pytest.raises(http.TimedOut, match=r"no answer within 0\.05 s"):
            await post(made, f"http://{HOST}:{port}/", within=50)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", http.Unreachable),
        (b"SSH-2.0-OpenSSH_9.6\r\n", http.Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", http.BrokenAnswer),
    ],
)
async def test_an_answer_that_is_none(answer: bytes, kind: type[http.HttpError]) -> None:
    async with listening(saying(answer)) as port, client() as made:
        with pytest.raises(kind):
            await post(made, f"http://{HOST}:{port}/")


async def test_a_request_that_cannot_be_sent() -> None:
    async with client() as made:
        for url in ("ftp://target.example/", "http://", "no url"):
            with pytest.raises(http.Unsendable):
                await post(made, url)
        with pytest.raises(http.Unreachable):
            await post(made, f"http://{HOST}:9/")
    with pytest.raises(http.Unreachable, match="not open"):
        await post(made, f"http://{HOST}:9/")


@pytest.mark.parametrize("safe", [True, False])
async def test_a_connection_that_was_closed_while_it_rested(safe: bool) -> None:
    """A repeat is sent only where the target recognises it, and on a fresh connection never."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = len(heard)
        await saying(OK, heard=heard, close=False)(reader, writer)
        if first == 0:
            # The next request is read and never answered.
            heard.append(await reader.readuntil(b"\r\n\r\n{}"))
            writer.close()

    async with listening(serve) as port, client() as made:
        await post(made, f"http://{HOST}:{port}/")
        if safe:
            assert (await post(made, f"http://{HOST}:{port}/", safe=True)).body == b"ok"
        else:
            with pytest.raises(http.Unreachable):
                await post(made, f"http://{HOST}:{port}/")
    assert len(heard) == 2 + safe


def test_certificates_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the certificates cannot be used"):
        Tls(ca=str(tmp_path / "none.pem")).context()
    assert Tls().context().verify_mode is ssl.CERT_REQUIRED


async def test_a_request_that_is_cancelled_at_any_turn_leaves_no_socket() -> None:
    """The teardown of the test looks for them. A connection may be made when nobody waits for it any more."""
    async with listening(saying(OK)) as port, client() as made:
        for turns in range(30):
            sending = asyncio.ensure_future(post(made, f"http://{HOST}:{port}/"))
            for _ in range(turns):
                await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
