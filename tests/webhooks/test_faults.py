"""R18: whatever a target answers, the webhook ends as published, in bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from pathlib import Path

import pytest

from redrive.net.http import HttpClient
from redrive.webhooks import Relay, Webhook
from redrive.webhooks.delivery import BODY_LIMIT
from redrive.webhooks.model import Envelope
from tests.support.listening import HOST, listening
from tests.support.stores import EACH, StoreUrl
from tests.webhooks.certificates import Authority
from tests.webhooks.delivering import delivering
from tests.webhooks.r18 import GONE, LONGEST, ROWS, SLOW, Row
from tests.webhooks.receiver import Receiver, endless, raw, receiving, status

SHORT = 0.3
"""Seconds that a target has which does not answer in time; one that does has more than it needs."""
SLACK = 1.0
"""Seconds that an attempt may take beyond its timeout."""
BODY = b'{"paid": 1}'
MEMORY = 10 * 1024 * 1024


async def put(relay: Relay, name: str, url: str, *, timeout: float = 20) -> str:
    """A new endpoint, and a webhook for it."""
    made = await relay.endpoints.create(url, id=name, timeout=f"{timeout * 1000:.0f}ms", max_age="30d")
    return str(await relay.receive(made.endpoint, Envelope(BODY)))


def closed_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """The real seconds of each request, by its path."""
    seconds: dict[str, list[float]] = {}
    request = HttpClient.request

    async def post(self: HttpClient, url: str, *args: object, **options: object) -> object:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await request(self, "POST", url, *args, **options)  # type: ignore[arg-type]  # passed on
        finally:
            seconds.setdefault(url.rpartition("/")[2], []).append(clock() - began)

    monkeypatch.setattr(HttpClient, "post", post)
    return seconds


@pytest.fixture
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_: object, host: str, port: int = 0, family: object = None) -> list[dict[str, object]]:
        if host != "inside.invalid":
            raise socket.gaierror(socket.EAI_NONAME, f"{host} is not known")
        return [{"hostname": host, "host": "10.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

    monkeypatch.setattr("aiohttp.ThreadedResolver.resolve", resolve)


def outcome(webhook: Webhook, now: int) -> tuple[str, int | None]:
    due = webhook.next_attempt_at
    return webhook.status, None if due is None else round(due.timestamp() - now / 1000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH)
async def test_r18_every_row_ends_as_published(
    kind: str, store_url: StoreUrl, tmp_path: Path, timed: dict[str, list[float]], no_name_server: None
) -> None:
    plain = {row.path: (row.script, status(200)) for row in ROWS if row.target == "plain"}
    context = Authority(tmp_path).server(self_signed=True)
    async with (
        receiving(plain) as receiver,
        receiving(context=context) as secure,
        listening(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as not_tls,
        delivering(store_url(kind)) as work,
    ):
        ids = {}
        for number, row in enumerate(ROWS):
            timeout = SHORT if row.answer == SLOW else 20
            ids[row.name] = await put(work.relay, f"e{number}", _url(row, receiver, secure, not_tls), timeout=timeout)
        await work.ended(*ids.values())
        webhooks = {name: await work.relay.webhooks.get(each) for name, each in ids.items()}
        expected = {row.name: (row.status, row.after) for row in ROWS}
        assert {name: outcome(each, work.clock.now()) for name, each in webhooks.items()} == expected
        said = {name: each.error_message or "" for name, each in webhooks.items()}
        assert [(row.name, said[row.name]) for row in ROWS if row.said not in said[row.name]] == []
        assert [name for name, each in webhooks.items() if not said[name] and each.status != "delivered"] == []
        endpoints = [await work.relay.endpoints.get(f"e{number}") for number in range(len(ROWS))]
        disabled = {row.name for row, each in zip(ROWS, endpoints, strict=True) if each.status == "disabled"}
        assert disabled == {row.name for row in ROWS if row.answer == GONE}

        # Those that wait are sent again, once, with the same id; the others never.
        again = [ids[row.name] for row in ROWS if row.status == "pending" and row.target == "plain"]
        work.clock.advance(LONGEST * 1000)
        await work.ended(*again, times=2)
        assert {(await work.relay.webhooks.get(each)).status for each in again} == {"delivered"}

    for row in ROWS:
        if row.target == "plain":
            tries = 2 if row.status == "pending" else 1
            seen = receiver.seen[row.path]
            assert [each["X-Redrive-Attempt"] for each in seen] == [str(n + 1) for n in range(tries)], row.name
            assert {each["X-Redrive-Webhook-Id"] for each in seen} == {ids[row.name]}
            assert {each["Idempotency-Key"] for each in seen} == {ids[row.name]}
            assert {each.body for each in seen} == {BODY}
    assert secure.seen == {}
    for row in ROWS:
        if row.answer == SLOW:
            assert SHORT * 0.9 <= timed[row.path][0] <= SHORT + SLACK, row.name


def _url(row: Row, plain: Receiver, secure: Receiver, not_tls: int) -> str:
    match row.target:
        case "plain":
            return plain.url(row.path)
        case "tls":
            return secure.url(row.path, scheme="https")
        case "http as tls":
            return f"https://{HOST}:{not_tls}/{row.path}"
        case "silence as tls":
            return plain.url(row.path, scheme="https")
        case "no name":
            return f"http://nowhere.invalid/{row.path}"
        case "private":
            return f"http://inside.invalid/{row.path}"
        case "closed":
            return f"http://{HOST}:{closed_port()}/{row.path}"


def test_r18_has_at_least_forty_rows() -> None:
    assert len({row.path for row in ROWS}) == len(ROWS) >= 40


async def test_r18_of_an_answer_without_end_64_kib_are_kept() -> None:
    sent: list[int] = []
    script = endless(b"HTTP/1.1 200 OK\r\nX-Said: yes\r\n\r\n", sent=sent)
    async with receiving({"in": (script,)}) as receiver, delivering() as work:
        webhook = await put(work.relay, "e", receiver.url("in"))
        await work.ended(webhook)
        (attempt,) = (await work.relay.app.history(webhook)).attempts
    assert attempt.output.startswith(b"HTTP 200\nX-Said: yes\n\nxxx")
    assert len(attempt.output) == BODY_LIMIT
    assert attempt.output.endswith(b"x\n[the rest of the answer was left out]")
    assert sum(sent) < MEMORY, "the rest is in buffers of the system"


@pytest.mark.slow
async def test_r18_s6_hostile_answers_take_no_memory() -> None:
    chunk = b"x" * 4096
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    scripts = {
        "body": endless(b"HTTP/1.1 200 OK\r\n\r\n", chunk),
        "bomb": endless(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", chunk),
        "header": endless(b"HTTP/1.1 200 OK\r\nX-Long: ", chunk),
        "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X-Many: 1\r\n" * 400),
        "interim": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100),
        "chunks": endless(chunked, b"1\r\nx\r\n" * 700),
        "extension": endless(chunked + b"1;a=", chunk),
        "trailers": endless(chunked + b"0\r\n", b"X-Many: 1\r\n" * 400),
        "reason": endless(b"HTTP/1.1 200 ", chunk),
    }
    async with receiving({name: (script,) for name, script in scripts.items()}) as receiver, delivering() as work:
        await work.ended(await put(work.relay, "warm", receiver.url("warm")))
        peaks = {}
        tracemalloc.start()
        try:
            for name in scripts:
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                await work.ended(await put(work.relay, name, receiver.url(name), timeout=1))
                peaks[name] = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert [(name, peak) for name, peak in peaks.items() if peak > MEMORY] == []
