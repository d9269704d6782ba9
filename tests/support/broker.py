"""A broker that takes receipts, on a real port: MCP at /mcp, plain HTTP POST elsewhere. It misbehaves when told to.

    with Broker() as broker:                            # in a thread of its own: also for blocking code and processes
        broker.script(status(500), limited(7), reset())  # the next three calls meet these, one each; then all is well
        broker.always(status(503))                      # every call, until broker.heal()
        broker.down()                                   # the port is closed: connections are refused
        broker.up()                                     # on the same port again
        await broker.called(3)                          # until three calls have come
        broker.calls[-1].key                            # what they were

What is accepted is remembered once for each idempotency key, as a good target does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Self

import pytest
from aiohttp import web

from tests.support.broker_tasks import LEASE_MS, Arguments, Refusal, Task, Tasks

PATIENCE = 20.0
"""Seconds of real time after which a test that waits for a call says so."""


@dataclass(frozen=True)
class Call:
    """A request as it came in. `tool` is empty for a plain POST, whose arguments are its JSON body."""

    tool: str
    arguments: Arguments
    key: str
    at: int
    path: str
    headers: dict[str, str]
    body: bytes
    answer: str
    """What it met: `ok`, or the name of the scripted step."""


@dataclass(frozen=True)
class Step:
    """How one call is answered. `done`: the broker does what was asked for all the same, and only the answer is bad."""

    name: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    rpc: dict[str, Any] | None = None
    """Part of a JSON-RPC answer: `{"error": ...}` or `{"result": ...}`; the id is that of the request."""
    done: bool = False


OK = Step("ok", done=True)
Rule = Callable[[Call, int], Step | None]
"""How a call is met, by what it says and how many came before with its key."""


def status(number: int, body: object = None, *, headers: dict[str, str] | None = None) -> Step:
    """An HTTP status. A body that is not bytes is written as JSON."""
    raw = body if isinstance(body, bytes) else HTTPStatus(number).phrase.encode() if body is None else _dump(body)
    return Step(f"status {number}", number, headers or {}, raw)


def limited(retry_after: float | str | None = None) -> Step:
    """429, with or without a Retry-After header."""
    return status(429, headers={} if retry_after is None else {"Retry-After": str(retry_after)})


def reset(*, done: bool = False) -> Step:
    """The connection is reset instead of an answer; `done`: after the broker has done what was asked."""
    return Step("reset", done=done)


def hang(*, done: bool = False) -> Step:
    """No answer, until the caller goes away or the broker goes down."""
    return Step("hang", done=done)


def half(*, done: bool = False) -> Step:
    """The answer ends in the middle."""
    return Step("half", done=done)


def garbage() -> Step:
    return Step("garbage", headers={"Content-Type": "application/json"}, body=b'{"jsonrpc": "2.0", \xff\x00 oops')


def rpc_error(code: int | str, message: str = "refused", **data: object) -> Step:
    """A JSON-RPC error in a 200. A code in words is in its data, as JSON-RPC wants numbers."""
    error: dict[str, Any] = {"code": code if isinstance(code, int) else -32000, "message": message}
    if isinstance(code, str) or data:
        error["data"] = ({"code": code} if isinstance(code, str) else {}) | data
    return Step(f"rpc error {code}", rpc={"error": error})


def tool_error(code: str, message: str = "refused", **data: object) -> Step:
    """A tool result that is flagged as an error."""
    return Step(
        f"tool error {code}", rpc={"result": _content({"error": message, "code": code} | data) | {"isError": True}}
    )


def error_text(code: str, message: str = "refused", **data: object) -> Step:
    """A tool result that looks well, and whose text tells of an error."""
    return Step(f"error text {code}", rpc={"result": _content({"error": message, "code": code} | data)})


def sse(inner: Step = OK) -> Step:
    """The same answer as an event stream, with a message about something else before it."""
    return Step(f"sse {inner.name}", 200, {"Content-Type": "text/event-stream"}, inner.body, inner.rpc, inner.done)


class Broker:
    """All may be called from any thread. `now` gives the instants of calls and leases, such as `FakeClock().now`."""

    def __init__(
        self,
        *,
        token: str | None = None,
        tenant: str | None = None,
        strict: bool = False,
        lease_ms: int = LEASE_MS,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.calls: list[Call] = []
        self.accepted: dict[str, Call] = {}
        """By idempotency key: what was done. A repeat is answered as before and not done again."""
        self._token, self._tenant = token, tenant
        self._now = now or (lambda: time.time_ns() // 1_000_000)
        self._tasks = Tasks(self._now, strict=strict, lease_ms=lease_ms)
        self._script: deque[Step] = deque()
        self._always: Step | None = None
        self._rule: Rule = lambda _call, _earlier: None
        self._by_key: Counter[str] = Counter()
        self._news = threading.Condition()
        # Bound and never listened at: the port stays ours while the broker is down, and refuses connections.
        self._place = _socket(0)
        self.port: int = self._place.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._runner: web.ServerRunner | None = None
        self._gone = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._place.close()

    # --- what a test says and asks ---

    def script(self, *steps: Step) -> None:
        """The next calls meet these, one each, after those scripted before."""
        self._script.extend(steps)

    def always(self, step: Step) -> None:
        """What every call meets for which nothing is scripted."""
        self._always = step

    def rule(self, rule: Rule) -> None:
        """Asked about each call, in the broker's thread; None leaves it to the script."""
        self._rule = rule

    def heal(self) -> None:
        self._script.clear()
        self._always = None
        self._rule = lambda _call, _earlier: None

    def up(self) -> None:
        self._run(self._up())

    def down(self) -> None:
        """Nobody is answered any more, not even those who wait."""
        self._run(self._down())

    def add_task(self, payload: Any = None, id: str | None = None) -> Task:
        """Work for whoever asks for it. From now on only its lease counts."""
        return self._tasks.add(payload, id)

    def expire(self, task_id: str) -> None:
        self._tasks.expire(task_id)

    def of(self, *, key: str | None = None, tool: str | None = None, lease: str | None = None) -> list[Call]:
        """Calls by idempotency key, by tool (without `asyncgate.`), by lease id."""
        return [
            call
            for call in list(self.calls)
            if (key is None or call.key == key)
            and (tool is None or call.tool == f"asyncgate.{tool}")
            and (lease is None or call.arguments.get("lease_id") == lease)
        ]

    def wait_for(self, count: int, *, tool: str | None = None) -> list[Call]:
        """Until so many calls have come."""
        with self._news:
            if not self._news.wait_for(lambda: len(self.of(tool=tool)) >= count, PATIENCE):
                raise TimeoutError(f"{len(self.of(tool=tool))} of {count} calls came: {[c.tool for c in self.calls]}")
        return self.of(tool=tool)

    async def called(self, count: int, *, tool: str | None = None) -> list[Call]:
        return await asyncio.to_thread(self.wait_for, count, tool=tool)

    # --- the server ---

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _up(self) -> None:
        if self._runner is not None:
            return
        self._gone = asyncio.Event()
        runner = web.ServerRunner(web.Server(self._serve), handle_signals=False, shutdown_timeout=1)
        await runner.setup()
        await web.SockSite(runner, _socket(self.port)).start()
        self._runner = runner

    async def _down(self) -> None:
        runner, self._runner = self._runner, None
        self._gone.set()
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked, arguments, number = _read(body)
        key = request.headers.get("Idempotency-Key", "")
        tool = asked if request.path.endswith("/mcp") else ""
        call = Call(tool, arguments, key, self._now(), request.path, dict(request.headers), body, "")
        step = self._rule(call, self._by_key[key]) or (self._script.popleft() if self._script else self._always or OK)
        call = replace(call, answer=step.name)
        self._by_key[key] += 1
        rpc = None
        try:
            if step.done:
                rpc = {"result": _content(self._do(call))}
        except Refusal as refusal:
            code = 401 if refusal.code == "UNAUTHORIZED" else 409
            step = tool_error(refusal.code, str(refusal)) if tool else status(code, {"code": refusal.code})
        finally:
            # Told last: whoever waits for the call finds what it did.
            with self._news:
                self.calls.append(call)
                self._news.notify_all()
        return await self._answer(request, step, rpc if step.rpc is None else step.rpc, number)

    def _do(self, call: Call) -> Arguments:
        if self._token is not None and call.headers.get("Authorization") != f"Bearer {self._token}":
            raise Refusal("UNAUTHORIZED", "who are you?")
        if self._tenant is not None and call.arguments.get("tenant_id") != self._tenant:
            raise Refusal("UNAUTHORIZED", "another tenant's")
        if call.key and call.key in self.accepted:
            return {"ok": True}
        tool = call.tool or _tool_of(call.arguments)
        done = self._tasks.call(tool, call.arguments)
        if tool not in {"asyncgate.lease_next", "asyncgate.renew_lease"}:
            self.accepted[call.key or f"without key {len(self.accepted)}"] = call
        return done

    async def _answer(
        self, request: web.BaseRequest, step: Step, rpc: dict[str, Any] | None, number: object
    ) -> web.StreamResponse:
        if step.name == "hang":
            await self._gone.wait()
        if step.name in {"hang", "reset"}:
            _reset(request)
        if step.name == "half":
            return await _half(request)
        body = step.body
        if body is None:
            body = _dump({"jsonrpc": "2.0", "id": number} | (rpc or {"result": {}}))
        headers = {"Content-Type": "application/json"} | step.headers
        if step.name.startswith("sse"):
            other = _dump({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "at work"}})
            body = b"event: message\ndata: " + other + b"\n\nevent: message\ndata: " + body + b"\n\n"
        return web.Response(status=step.status, headers=headers, body=body)


def _read(body: bytes) -> tuple[str, Arguments, object]:
    """The tool, its arguments and the id of the request."""
    try:
        asked = json.loads(body)
        params = asked.get("params") or {}
        if asked.get("jsonrpc") == "2.0":
            return (
                str(params.get("name", asked.get("method", ""))),
                dict(params.get("arguments") or {}),
                asked.get("id"),
            )
        return "", dict(asked), None
    except (ValueError, AttributeError, TypeError):
        return "", {}, None


def _tool_of(receipt: Arguments) -> str:
    """What a plain POST of a receipt asks for."""
    tools = {"complete": "asyncgate.complete", "failed": "asyncgate.fail"}
    return tools.get(str(receipt.get("status")), "asyncgate.report_progress")


def _content(told: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(told)}]}


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()


def _reset(request: web.BaseRequest) -> None:
    """Not a polite end: with no time to linger the kernel sends a reset."""
    if request.transport is None:
        return
    link: socket.socket = request.transport.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()


async def _half(request: web.BaseRequest) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b'{"jsonrpc": "2.0", "id"')
    if request.transport is not None:
        request.transport.close()
    return answer


def _socket(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made
