"""The connection to Redis by itself: what is said, in what pieces it comes, how it ends, and who is let in."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from redrive.errors import BadStoreURL, StoreUnavailable
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.wire import Moved, Refused, Wire
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import new
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.redis_office_kit import Server
from tests.support.listening import HOST, Talk, listening

PING = b"*1\r\n$4\r\nPING\r\n"


@asynccontextmanager
async def wired(talk: Talk, **options: Any) -> AsyncIterator[Wire]:
    async with listening(talk) as port:
        wire = Wire(Options(Address(HOST, port), **options))
        try:
            await wire.connect()
            yield wire
        finally:
            wire.drop()


def saying(*pieces: bytes, ends: bool = False) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(PING)) == PING
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop
        if ends:
            writer.close()
        await reader.read()

    return talk


@pytest.fixture
async def wire(address: str) -> AsyncIterator[Wire]:
    parts = urlsplit(address)
    wire = Wire(Options(Address(parts.hostname or HOST, parts.port or 0)))
    await wire.connect()
    yield wire
    wire.drop()


# --- what is said ---


async def test_an_answer_that_comes_in_single_bytes_is_put_together() -> None:
    said = b"*5\r\n:42\r\n$-1\r\n$5\r\na\r\nb\0\r\n*0\r\n+OK\r\n"
    async with wired(saying(*[said[at : at + 1] for at in range(len(said))])) as wire:
        assert await wire.ask("PING") == [42, None, b"a\r\nb\0", [], b"OK"]


async def test_a_refusal_is_raised_in_the_words_of_the_server() -> None:
    async with wired(saying(b"-WRONGTYPE Operation against a key\r\n")) as wire:
        with pytest.raises(Refused, match=r"^WRONGTYPE Operation against a key$") as raised:
            await wire.ask("PING")
        assert raised.value.word == "WRONGTYPE"
        assert not wire.lost()


@pytest.mark.parametrize(
    ("said", "where"),
    [("10.0.0.7:7001", ("10.0.0.7", 7001)), (":7001", ("", 7001)), ("fe80::1:7001", ("fe80::1", 7001))],
)
async def test_another_node_is_named(said: str, where: tuple[str, int]) -> None:
    async with wired(saying(f"-MOVED 3999 {said}\r\n".encode())) as wire:
        with pytest.raises(Moved) as raised:
            await wire.ask("PING")
    assert (raised.value.host, raised.value.port) == where


async def test_what_no_redis_says_ends_the_connection() -> None:
    async with wired(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as wire:
        with pytest.raises(ConnectionError, match="Protocol error"):
            await wire.ask("PING")
        assert wire.lost()


# --- how it ends ---


@pytest.mark.parametrize("half", [b"", b"$10\r\nabc", b"*2\r\n:1\r\n"])
async def test_a_server_that_closes_in_the_middle_of_an_answer_has_given_none(half: bytes) -> None:
    async with wired(saying(half, ends=True)) as wire:
        with pytest.raises(ConnectionError, match="closed the connection"):
            await wire.ask("PING")
        assert wire.lost()
        with pytest.raises(ConnectionError):
            await wire.ask("PING")


async def test_whoever_waits_when_the_wire_is_dropped_is_told() -> None:
    async with wired(saying(b"$10\r\nabc")) as wire:
        asking = asyncio.ensure_future(wire.ask("PING"))
        await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop
        wire.drop()
        with pytest.raises(ConnectionError, match="dropped"):
            await asking


async def test_whoever_was_cancelled_in_the_middle_of_an_answer_leaves_a_wire_that_can_be_dropped() -> None:
    async with wired(saying(b"$10\r\nabc")) as wire:
        asking = asyncio.ensure_future(wire.ask("PING"))
        await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        wire.drop()
        assert wire.lost()


async def test_a_server_that_does_not_answer_the_password_is_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(TimeoutError):
        async with wired(silent, username="ada", connect_timeout=30):
            pytest.fail("nobody let us in")


# --- much ---


@pytest.mark.slow
async def test_an_answer_of_fifty_megabytes_and_a_question_of_as_many(wire: Wire, server: Server) -> None:
    much, key = bytes(range(256)) * 200_000, server.key("much")
    assert await wire.ask("SET", key, much) == b"OK"
    assert await wire.ask("GET", key) == much
    await wire.ask("DEL", key)


async def test_many_small_answers_and_one_of_many_parts(wire: Wire, server: Server) -> None:
    key, parts = server.key("parts"), [b"%d" % number for number in range(20_000)]
    assert [await wire.ask("ECHO", part) for part in parts[:500]] == parts[:500]
    await wire.ask("RPUSH", key, *parts)
    assert await wire.ask("LRANGE", key, 0, -1) == parts
    await wire.ask("DEL", key)


# --- who is let in ---


async def test_the_number_of_a_database_is_used(address: str, server: Server) -> None:
    other = urlsplit(address)._replace(path="/3").geturl()
    store = await store_from_url(other).open()
    await store.put([new()])
    await store.close()
    assert not server.client.exists(server.key("item"))
    with redis.Redis.from_url(urlsplit(other)._replace(query="").geturl()) as client:
        assert client.hlen(server.key("item")) == 1
        client.delete(*client.keys(f"{server.prefix}*"))


class Certificate:
    """One that signs itself, and so is its own authority."""

    def __init__(self, folder: Path, name: str, *hosts: str) -> None:
        self.path, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        names = ",".join(hosts)
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", self.key, "-out", self.path, "-days", "2", "-subj", f"/CN={name}"]  # type: ignore[list-item]
        subprocess.run([*command, "-addext", f"subjectAltName={names}"], check=True, capture_output=True)

    def context(self, clients: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("tls")
    return {
        "ours": Certificate(folder, "ours", f"IP:{HOST}"),
        "stranger": Certificate(folder, "stranger", f"IP:{HOST}"),
        "elsewhere": Certificate(folder, "elsewhere", "DNS:elsewhere.example"),
    }


@asynccontextmanager
async def behind_tls(address: str, context: ssl.SSLContext, **options: object) -> AsyncIterator[str]:
    """The same server, spoken to by TLS."""
    parts = urlsplit(address)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        ways = [asyncio.ensure_future(carry(reader, back)), asyncio.ensure_future(carry(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async with listening(pass_on, context) as port:
        query = "&".join([parts.query, *(f"{name}={value}" for name, value in options.items())])
        yield parts._replace(scheme="rediss", netloc=f"{HOST}:{port}", query=query).geturl()


async def _used(url: str) -> None:
    store = await store_from_url(url).open()
    made = new(b"x" * 100_000)
    await store.put([made])
    assert (await store.get(made.id)).item.payload == made.payload
    await store.close()


async def test_a_server_with_a_certificate_of_a_known_authority_is_used(
    address: str, certificates: dict[str, Certificate]
) -> None:
    ours = certificates["ours"]
    async with behind_tls(address, ours.context(), ssl_ca_certs=ours.path) as url:
        await _used(url)


@pytest.mark.parametrize(
    ("shown", "known", "says"),
    [
        ("stranger", "ours", "certificate verify failed"),
        ("ours", None, "certificate verify failed"),
        ("elsewhere", "elsewhere", "IP address mismatch"),
    ],
)
async def test_a_server_with_any_other_certificate_is_refused_by_name(
    address: str, certificates: dict[str, Certificate], shown: str, known: str | None, says: str
) -> None:
    options = {} if known is None else {"ssl_ca_certs": certificates[known].path}
    async with behind_tls(address, certificates[shown].context(), **options) as url:
        with pytest.raises(StoreUnavailable, match=says) as raised:
            await store_from_url(url).open()
    assert "speaks TLS" in raised.value.hint


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_check_hostname=no"])
async def test_whoever_says_so_is_less_strict(address: str, certificates: dict[str, Certificate], option: str) -> None:
    elsewhere = certificates["elsewhere"]
    name, _, value = option.partition("=")
    async with behind_tls(address, elsewhere.context(), ssl_ca_certs=elsewhere.path, **{name: value}) as url:
        await _used(url)


def test_a_key_without_its_certificate_is_told() -> None:
    with pytest.raises(BadStoreURL, match="a key without its certificate"):
        store_from_url("rediss://localhost?ssl_keyfile=/etc/redrive.key")


async def test_a_client_shows_its_own_certificate(address: str, certificates: dict[str, Certificate]) -> None:
    ours, client = certificates["ours"], certificates["stranger"]
    options = {"ssl_ca_certs": ours.path, "ssl_certfile": client.path, "ssl_keyfile": client.key}
    async with behind_tls(address, ours.context(clients=client.path), **options) as url:
        await _used(url)
