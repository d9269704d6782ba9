"""Real sockets, and a target that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from redrive.core.policy import Policy
from redrive.engine.evidence import failure_of
from redrive.errors import (
    ConfigError,
    MissingExtra,
    ReceiptError,
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
    ReceiptUnreachable,
)
from redrive.net.urls import check_token
from redrive.receipts import Receipt
from redrive.receipts.transports import Http, Mcp, Own, check_endpoint, transport_for
from tests.receipts.target import receipt
from tests.support.broker import Broker, Step, error_text, garbage, half, hang, limited, reset, rpc_error, sse, status
from tests.support.broker import tool_error as flagged
from tests.support.listening import HOST, listening

TOKEN = "s3cret-t0ken-of-ours"  # noqa: S105 - not one of anybody's
TIMEOUT = 20_000
SHORT = 200


@pytest.fixture
async def mcp(broker: Broker) -> AsyncIterator[Mcp]:
    wire = Mcp(f"{broker.url}/mcp", TOKEN, TIMEOUT, 5)
    await wire.open()
    yield wire
    await wire.close()


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[Http]:
    wire = Http(f"{broker.url}/receipts", TOKEN, TIMEOUT, 5)
    await wire.open()
    yield wire
    await wire.close()


async def test_a_complete_receipt_as_a_tool_call(broker: Broker, mcp: Mcp) -> None:
    await mcp.deliver(Receipt.of(receipt(trace="travels along")), "key-1", "tenant-1")
    (call,) = broker.calls
    assert (call.path, call.tool, call.key) == ("/mcp", "asyncgate.complete", "key-1")
    assert call.headers["Authorization"] == f"Bearer {TOKEN}"
    assert call.headers["Accept"] == "application/json, text/event-stream"
    assert call.arguments == {
        "worker_id": "cognigate-0",
        "task_id": "task-456",
        "lease_id": "lease-1",
        "tenant_id": "tenant-1",
        "result": {
            "summary": "Task completed successfully",
            "artifact_pointers": ["s3://bucket/results.json"],
            "timestamp": "2024-01-15T10:30:00Z",
            "trace": "travels along",
        },
        "artifacts": ["s3://bucket/results.json"],
    }


@pytest.mark.parametrize(("status", "inside"), [("running", "progress"), ("complete", "result")])
async def test_what_went_wrong_on_the_way_travels_along(broker: Broker, mcp: Mcp, status: str, inside: str) -> None:
    await mcp.deliver(Receipt.of(receipt(status=status, error_metadata={"code": "SLOW"})), "key-1", None)
    assert broker.calls[0].arguments[inside]["error_metadata"] == {"code": "SLOW"}


async def test_artifacts_and_tenant_only_where_there_are_any(broker: Broker, mcp: Mcp) -> None:
    await mcp.deliver(Receipt.of(receipt(artifact_pointers=[])), "key-1", None)
    assert not broker.calls[0].arguments.keys() & {"artifacts", "tenant_id"}


async def test_a_failed_receipt_as_a_tool_call(broker: Broker, mcp: Mcp) -> None:
    error = {"code": "JOB_TIMEOUT", "message": "too long"}
    await mcp.deliver(Receipt.of(receipt(status="failed", error_metadata=error)), "k1", None)
    await mcp.deliver(Receipt.of(receipt(status="failed", error_metadata=error | {"retryable": True})), "k2", None)
    await mcp.deliver(Receipt.of(receipt(status="failed", summary="no words")), "k3", None)
    assert [call.tool for call in broker.calls] == ["asyncgate.fail"] * 3
    told = {name: receipt()[name] for name in ("summary", "artifact_pointers", "timestamp")}
    assert [(call.arguments["error"], call.arguments["retryable"]) for call in broker.calls] == [
        (told | error, False),
        (told | error, True),
        (told | {"code": "FAILED", "message": "no words", "summary": "no words"}, False),
    ]


async def test_a_running_receipt_as_a_tool_call(broker: Broker, mcp: Mcp) -> None:
    await mcp.deliver(Receipt.of(receipt(status="running", summary="half")), "k1", None)
    (call,) = broker.calls
    assert call.tool == "asyncgate.report_progress"
    assert call.arguments["progress"]["status"] == "running"
    assert call.arguments["progress"]["summary"] == "half"


async def test_a_receipt_as_a_plain_post(broker: Broker, http: Http) -> None:
    given = receipt(trace="kept")
    await http.deliver(Receipt.of(given), "key-1", "tenant-1")
    (call,) = broker.calls
    assert (call.path, call.tool, call.key) == ("/receipts", "", "key-1")
    assert call.arguments == given | {"tenant_id": "tenant-1"}
    assert call.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_no_token_no_header(broker: Broker) -> None:
    wire = Mcp(f"{broker.url}/mcp", "", TIMEOUT, 5)
    await wire.open()
    await wire.deliver(Receipt.of(receipt()), "k", None)
    await wire.close()
    assert "Authorization" not in broker.calls[0].headers


MISBEHAVIOUR: list[tuple[Step, type[ReceiptError]]] = [
    (status(500), ReceiptServerError),
    (status(503), ReceiptServerError),
    (status(400), ReceiptRefused),
    (status(302, headers={"Location": "/elsewhere"}), ReceiptRefused),
    (status(410), ReceiptSuperseded),
    (limited(), ReceiptLimited),
    (limited(7), ReceiptLimited),
    (reset(), ReceiptUnreachable),
    (half(), ReceiptServerError),
]
MCP_MISBEHAVIOUR = [
    (garbage(), ReceiptServerError),
    (rpc_error("UNAUTHORIZED"), ReceiptRefused),
    (flagged("TASK_NOT_FOUND"), ReceiptSuperseded),
    (error_text("ERROR"), ReceiptServerError),
    (sse(rpc_error("RATE_LIMIT_EXCEEDED", retry_after=7)), ReceiptLimited),
]


@pytest.mark.parametrize(("step", "kind"), MISBEHAVIOUR + MCP_MISBEHAVIOUR)
async def test_what_a_target_does_to_a_tool_call(
    broker: Broker, mcp: Mcp, step: Step, kind: type[ReceiptError]
) -> None:
    broker.script(step)
    with pytest.raises(ReceiptError) as error:
        await mcp.deliver(Receipt.of(receipt()), "k", None)
    assert type(error.value) is kind
    assert len(broker.calls) == 1, "redirects are not followed, and nothing is tried twice in secret"
    await mcp.deliver(Receipt.of(receipt()), "k", None)


@pytest.mark.parametrize(("step", "kind"), MISBEHAVIOUR)
async def test_what_a_target_does_to_a_plain_post(
    broker: Broker, http: Http, step: Step, kind: type[ReceiptError]
) -> None:
    broker.script(step)
    with pytest.raises(ReceiptError) as error:
        await http.deliver(Receipt.of(receipt()), "k", None)
    assert type(error.value) is kind
    assert len(broker.calls) == 1
    await http.deliver(Receipt.of(receipt()), "k", None)


@pytest.mark.slow
async def test_a_target_that_hangs_is_left_after_the_timeout(broker: Broker) -> None:
    broker.script(hang())
    wire = Mcp(f"{broker.url}/mcp", "", SHORT, 5)
    await wire.open()
    with pytest.raises(ReceiptUnreachable, match=r"did not answer within 0\.2 s"):
        await wire.deliver(Receipt.of(receipt()), "k", None)
    await wire.close()


async def test_a_target_that_is_down_and_comes_back(broker: Broker, mcp: Mcp) -> None:
    broker.down()
    with pytest.raises(ReceiptUnreachable, match="could not be reached"):
        await mcp.deliver(Receipt.of(receipt()), "k", None)
    broker.up()
    await mcp.deliver(Receipt.of(receipt()), "k", None)


@contextlib.asynccontextmanager
async def server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """One that answers a single request, byte by byte as a test says; the URL."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    async with listening(serve) as port:
        yield f"http://{HOST}:{port}"
        await over.wait()


async def test_a_stream_that_stays_open_after_its_answer_is_left() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(b'data: {"jsonrpc": "2.0", "id": "k", "result": {}}\n\n')
        await writer.drain()
        await reader.read()

    async with server(answer) as url:
        wire = Mcp(f"{url}/mcp", "", TIMEOUT, 5)
        await wire.open()
        await wire.deliver(Receipt.of(receipt()), "k", None)
        await wire.close()


@pytest.mark.parametrize("length", [b"Content-Length: 90000000\r\n", b""])
async def test_an_endless_answer_is_not_read_to_its_end(length: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 no\r\n" + length + b"\r\n")
        while True:
            writer.write(b"x" * 100_000)
            await writer.drain()

    async with server(answer) as url:
        wire = Http(url, "", TIMEOUT, 5)
        await wire.open()
        with pytest.raises(ReceiptServerError) as error:
            await wire.deliver(Receipt.of(receipt()), "k", None)
        await wire.close()
    assert len(str(error.value)) < 300


async def test_the_token_is_in_no_evidence_whatever_the_target_says(broker: Broker, mcp: Mcp, http: Http) -> None:
    for wire in (mcp, http):
        broker.script(status(500, {"error": f"who is {TOKEN}?"}), status(400, TOKEN.encode()))
        for _ in range(2):
            with pytest.raises(ReceiptError) as error:
                await wire.deliver(Receipt.of(receipt()), "k", None)
            assert TOKEN not in f"{error.value} {error.value!r} {error.value.__cause__}"
        assert TOKEN not in repr(wire)


async def test_a_tool_of_the_target_is_called(broker: Broker, mcp: Mcp) -> None:
    task = broker.add_task({"n": 1})
    given = await mcp.call("asyncgate.lease_next", {"worker_id": "w"})
    assert task.id in str(given)
    broker.script(flagged("UNAUTHORIZED"))
    with pytest.raises(ReceiptRefused):
        await mcp.call("asyncgate.lease_next", {"worker_id": "w"})


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionResetError("gone"), ReceiptUnreachable),
        (TimeoutError(), ReceiptUnreachable),
        (OSError("no route"), ReceiptUnreachable),
        (ReceiptLimited("slow"), ReceiptLimited),
        (ValueError("a bug"), ReceiptServerError),
    ],
)
async def test_what_a_function_of_ones_own_raises(raised: Exception, kind: type[ReceiptError]) -> None:
    async def deliver(given: Receipt, key: str, tenant_id: str | None) -> None:
        raise raised

    with pytest.raises(ReceiptError) as error:
        await Own(deliver, TIMEOUT).deliver(Receipt.of(receipt()), "k", None)
    assert type(error.value) is kind


def behind(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("password=hunter2"),
        ConnectionResetError("https://ada:hunter2@b/ is gone"),
        ReceiptRefused("not with password=hunter2", hint="password=hunter2"),
        behind(ReceiptRefused("no"), ValueError("password=hunter2")),
        behind(ValueError("no"), behind(KeyError("no"), ValueError("password=hunter2"))),
    ],
)
async def test_secrets_in_what_a_function_of_ones_own_raises_are_not_kept(raised: Exception) -> None:
    async def deliver(given: Receipt, key: str, tenant_id: str | None) -> None:
        raise raised

    with pytest.raises(ReceiptError) as error:
        await Own(deliver, TIMEOUT).deliver(Receipt.of(receipt()), "k", None)
    assert "hunter2" not in str(error.value)
    assert "hunter2" not in failure_of(error.value, Policy()).text


async def test_the_cause_of_what_a_function_of_ones_own_raises_is_kept() -> None:
    async def deliver(given: Receipt, key: str, tenant_id: str | None) -> None:
        raise ReceiptRefused("no") from ValueError("too long")

    with pytest.raises(ReceiptRefused) as error:
        await Own(deliver, TIMEOUT).deliver(Receipt.of(receipt()), "k", None)
    assert failure_of(error.value, Policy()).text.endswith("caused by ValueError: too long")


async def test_a_function_of_ones_own_that_hangs_is_left() -> None:
    async def deliver(given: Receipt, key: str, tenant_id: str | None) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ReceiptUnreachable):
        await Own(deliver, 10).deliver(Receipt.of(receipt()), "k", None)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://b", "http://b/mcp"),
        ("http://b/", "http://b/mcp"),
        ("https://b:8443/gate", "https://b:8443/gate/mcp"),
        ("https://b/gate/mcp/", "https://b/gate/mcp"),
        ("https://b/mcp?v=2", "https://b/mcp?v=2"),
        (" http://[::1]:80 ", "http://[::1]:80/mcp"),
    ],
)
def test_the_endpoint_of_an_mcp_server_ends_in_mcp(given: str, url: str) -> None:
    assert check_endpoint(given, mcp=True) == url


def test_the_endpoint_of_a_plain_post_is_as_it_is_given() -> None:
    assert check_endpoint("http://b/receipts/", mcp=False) == "http://b/receipts/"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "",
        "b.example",
        "ftp://b",
        "http://",
        "http://b:99999",
        5,
        "http://[::1",
        "http://a..b",
        "http://b b/",
        "http://b\x1b/",
        "http://b/\x1b[2J",
        "http://b/two\nlines",
        "http://%20/",
        "http://b|c/",
    ],
)
def test_an_endpoint_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        check_endpoint(wrong, mcp=True)


@pytest.mark.parametrize(
    "right", ["http://b_c/", "http://bücher.example/a b", "http://[fe80::1%25eth0]/", "http://[::1]/"]
)
def test_an_endpoint_that_can_be_is_left_as_it_is(right: str) -> None:
    assert check_endpoint(right, mcp=False) == right


def test_a_password_in_the_endpoint_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="auth_token") as error:
        check_endpoint("http://ada:hunter2@b", mcp=True)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("wrong", ["", "  ", "two\nlines", "é", 5])
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="auth_token") as error:
        check_token(wrong, field="auth_token")
    assert "two" not in str(error.value)


@pytest.mark.parametrize("wrong", ["smtp", "MCP", None, 5])
def test_a_transport_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="transport"):
        transport_for(wrong, "http://b", auth_token=None, timeout=1, connections=1)


def plain(given: Receipt, key: str, tenant_id: str | None) -> None:
    """Easily written by mistake."""


class Plain:
    __call__ = staticmethod(plain)


@pytest.mark.parametrize("wrong", [plain, Plain(), print, functools.partial(plain, key="k")])
def test_a_function_that_is_not_async_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="async def"):
        transport_for(wrong, None, auth_token=None, timeout=1, connections=1)


async def test_without_aiohttp_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redrive.net.http", None)
    with pytest.raises(MissingExtra, match=r"redrive\[receipts\]"):
        await Mcp("http://b/mcp", "", TIMEOUT, 5).open()


async def test_a_name_that_no_server_has_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nobody)
    wire = Mcp("http://nowhere.invalid/mcp", "", TIMEOUT, 5)
    await wire.open()
    with pytest.raises(ReceiptUnreachable, match=r"nowhere\.invalid"):
        await wire.deliver(Receipt.of(receipt()), "k", None)
    await wire.close()


@pytest.mark.slow
async def test_an_answer_that_is_packed_unasked_is_not_unpacked(broker: Broker, mcp: Mcp) -> None:
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    broker.script(status(200, bomb, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}))
    with pytest.raises(ReceiptServerError, match="content encoding 'gzip', which was not requested"):
        await mcp.deliver(Receipt.of(receipt()), "key", None)
    assert broker.calls[0].headers["Accept-Encoding"] == "identity"
