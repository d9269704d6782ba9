"""How a receipt gets to its target: as an MCP tool call, as a plain POST, or by the caller's own function.

A transport delivers once, or raises a ReceiptError. When to try again is not its business.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from redrive._version import __version__
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.core.redact import REDACTED, redact_text
from redrive.engine.evidence import CHAIN_LIMIT, text_of
from redrive.engine.ids import new_id
from redrive.errors import (
    ConfigError,
    MissingExtra,
    ReceiptError,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptUnreachable,
)
from redrive.receipts.answers import Answer, has_reply, is_stream, judge, judge_tool, tool_result
from redrive.receipts.model import Receipt

if TYPE_CHECKING:
    from redrive.net.http import HttpAnswer, HttpClient

Deliver = Callable[[Receipt, str, str | None], Awaitable[object]]
"""The caller's own way: gets the receipt, the idempotency key and the tenant, and raises if it was not delivered."""

ANSWER_LIMIT = 1024 * 1024
JOB_LIMIT = 16 * 1024 * 1024
"""What is read of an answer: to a receipt, and to a call that fetches work."""
SAID_LIMIT = 200
FAILED = "FAILED"
_NO_HOST = frozenset(' "%<>\\^`{|}')
TOOLS = {"running": "asyncgate.report_progress", "complete": "asyncgate.complete", "failed": "asyncgate.fail"}


class Transport(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        """One try. `key` is the same for every try of one receipt. Raises ReceiptError."""


def transport_for(
    transport: str | Deliver, endpoint: str | None, *, auth_token: str | None, timeout: Millis, connections: int
) -> Transport:
    """Raises ConfigError that names the parameter."""
    way: object = transport
    if callable(way):
        if not is_async(way):
            hint = "make it an `async def` of (receipt, key, tenant_id)"
            raise ConfigError(f"{shown(way)} is not async", field="transport", hint=hint)
        return Own(cast("Deliver", way), timeout)
    if way not in ("mcp", "http"):
        hint = 'use "mcp", "http", or an async function of (receipt, key, tenant_id)'
        raise ConfigError(f"{shown(way)} is no transport", field="transport", hint=hint)
    kind = Mcp if way == "mcp" else Http
    return kind(check_endpoint(endpoint, mcp=way == "mcp"), check_token(auth_token), timeout, connections)


def is_async(function: object) -> bool:
    """Whether calling it gives something to wait for, as far as that can be known before."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_endpoint(endpoint: object, *, mcp: bool) -> str:
    """The URL to post to; that of an MCP server ends in /mcp."""
    hint = "use a URL such as https://broker.example"
    if not isinstance(endpoint, str) or not endpoint.strip():
        raise ConfigError(f"{shown(endpoint)} is no URL", field="endpoint", hint=hint)
    text = endpoint.strip()
    if not text.isprintable():  # Python's own reader passes over some of these without a word
        said = f"{redact_text(shown(endpoint))} has characters that cannot be printed"
        raise ConfigError(said, field="endpoint", hint=hint)
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ConfigError(f"{redact_text(shown(endpoint))}: {error}", field="endpoint", hint=hint) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("it has a user or password in it", field="endpoint", hint="give the secret as auth_token")
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or port == 0:
        raise ConfigError(f"{redact_text(shown(endpoint))} is no URL of a web server", field="endpoint", hint=hint)
    path = parts.path.rstrip("/")
    if mcp and not path.endswith("/mcp"):
        path = f"{path}/mcp"
    return urlunsplit((parts.scheme, parts.netloc, path if mcp else parts.path, parts.query, ""))


def _is_host(name: str | None) -> bool:
    """Not whether there is one of this name, but that there could be; an address of IPv6 may name its zone by a %."""
    if not name:
        return False
    return _NO_HOST.isdisjoint(name.partition("%")[0] if ":" in name else name)


def check_token(token: object) -> str:
    """The value itself is in no message."""
    if token is None:
        return ""
    if not isinstance(token, str) or not token.strip() or not token.isascii() or not token.isprintable():
        hint = "use printable ASCII, or leave it out where the target asks for none"
        raise ConfigError("it cannot be sent in a header", field="auth_token", hint=hint)
    return token.strip()


class Own:
    """The caller's function. What it raises beyond our own errors is a failure of the target, or of the way there."""

    def __init__(self, function: Deliver, timeout: Millis) -> None:
        self._function = function
        self._timeout = timeout

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        try:
            async with asyncio.timeout(self._timeout / 1000):
                await self._function(receipt, key, tenant_id)
        except ReceiptError as error:
            _cover(error)
            raise
        except (OSError, TimeoutError) as error:
            said = f"the target could not be reached: {redact_text(_words(error))}"
            raise ReceiptUnreachable(said) from _discreet(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            said = f"the transport failed: {redact_text(_words(error))}"
            raise ReceiptServerError(said) from _discreet(error)


def _cover(error: ReceiptError) -> None:
    """So that it can be kept in a letter, whoever chose its words."""
    error.message, error.hint = redact_text(error.message), redact_text(error.hint)
    error.args = (error.message,)
    if _discreet(error) is None:
        error.__cause__ = None


def _discreet(error: BaseException) -> BaseException | None:
    """None if it tells a secret, or what caused it does: it would be kept with all that."""
    each: BaseException | None = error
    for _ in range(CHAIN_LIMIT):
        if each is None:
            break
        if redact_text(text_of(each)) != text_of(each):
            return None
        each = each.__cause__ or each.__context__
    return error


class _Wire:
    """Connections for the life of a client; there are no more than tries at once."""

    def __init__(self, url: str, token: str, timeout: Millis, connections: int) -> None:
        self._url = url
        # In texts without its query, which may hold a secret.
        self._place = url.partition("?")[0]
        self._token = token
        self._timeout = timeout
        self._connections = connections
        self._client: HttpClient | None = None
        # What is packed could be of any size when it is unpacked, and answers are short.
        self._headers = {
            "User-Agent": f"redrive/{__version__}",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    async def open(self) -> None:
        try:
            from redrive.net.http import HttpClient
        except ImportError:
            hint = 'pip install "redrive[receipts]"'
            said = "the package aiohttp is needed to send receipts over HTTP"
            raise MissingExtra(said, field="transport", hint=hint) from None
        # Without a guard: the program itself names the broker.
        client = HttpClient(connections=self._connections)
        await client.open()
        self._client = client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _post(self, body: bytes, key: str, *, limit: int = ANSWER_LIMIT, safe: bool = True) -> Answer:
        """`safe`: the target knows by the key what it has seen, so it may be sent again."""
        if self._client is None:
            raise ReceiptUnreachable("the transport is not open")
        from redrive.net import http

        if not key.isprintable():
            raise ReceiptRefused(f"it cannot be sent to {self._place}: its key cannot be sent in a header")
        headers = {**self._headers, "Idempotency-Key": key}
        try:
            reply = await self._client.post(
                self._url,
                body,
                headers,
                within=self._timeout,
                limit=limit,
                enough=lambda part: _has_reply(part, key),
                safe=safe,
            )
        except http.TimedOut:
            seconds = self._timeout / 1000
            raise ReceiptUnreachable(f"{self._place} did not answer within {seconds:g} s") from None
        except http.BrokenAnswer as error:
            said = self._discreet(str(error))
            raise ReceiptServerError(f"the answer of {self._place} is not whole: {said}") from None
        except http.Unreachable as error:
            raise ReceiptUnreachable(f"{self._place} could not be reached: {self._discreet(str(error))}") from None
        except http.Unsendable as error:
            # It could not be sent the next time either.
            raise ReceiptRefused(f"it cannot be sent to {self._place}: {self._discreet(str(error))}") from None
        packed = reply.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise ReceiptServerError(f"{self._place} packed its answer as {packed[:40]!r}, unasked")
        return Answer(reply.status, reply.headers, self._without_token(reply.body), key)

    def _without_token(self, body: bytes) -> bytes:
        """A target that repeats what it was sent must not carry the secret into evidence."""
        return body.replace(self._token.encode(), REDACTED.encode()) if self._token else body

    def _discreet(self, text: str) -> str:
        return redact_text(text.replace(self._token, REDACTED) if self._token else text)


class Http(_Wire):
    """The receipt as JSON, in a POST."""

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        said = receipt.to_dict() if tenant_id is None else {**receipt.to_dict(), "tenant_id": tenant_id}
        error = judge(await self._post(msgspec.json.encode(said), key))
        if error is not None:
            raise error


class Mcp(_Wire):
    """A tool call of the Model Context Protocol: JSON-RPC 2.0 over HTTP."""

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        body = _call_body(TOOLS[receipt.status], _arguments(receipt, tenant_id), key)
        error = judge_tool(await self._post(body, key))
        if error is not None:
            raise error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """One call of a tool of the target, and what the tool gave. Raises ReceiptError."""
        key = new_id()
        return tool_result(await self._post(_call_body(tool, arguments, key), key, limit=JOB_LIMIT, safe=False))


def _has_reply(part: HttpAnswer, key: str) -> bool:
    """A stream may stay open after the call is answered."""
    return is_stream(part.headers) and has_reply(Answer(part.status, part.headers, part.body, key))


def _call_body(tool: str, arguments: Mapping[str, Any], key: str) -> bytes:
    call = {"jsonrpc": "2.0", "id": key, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return msgspec.json.encode(call)


def _arguments(receipt: Receipt, tenant_id: str | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "worker_id": receipt.worker_id,
        "task_id": receipt.task_id,
        "lease_id": receipt.lease_id,
    }
    if tenant_id is not None:
        arguments["tenant_id"] = tenant_id
    match receipt.status:
        case "failed":
            told = receipt.error_metadata or {}
            error = {"code": FAILED, "message": receipt.summary} | _told(receipt) | told
            return arguments | {"error": error, "retryable": bool(error.pop("retryable", False))}
        case "running":
            return arguments | {"progress": {"status": receipt.status, **_told(receipt)}}
        case _:
            arguments["result"] = _told(receipt)
            if receipt.artifact_pointers:
                arguments["artifacts"] = receipt.artifact_pointers
            return arguments


def _told(receipt: Receipt) -> dict[str, Any]:
    """All that the receipt says beside what the tool has a parameter for."""
    told = {
        **receipt.extra,
        "summary": receipt.summary,
        "artifact_pointers": receipt.artifact_pointers,
        "timestamp": receipt.at,
    }
    if receipt.error_metadata is not None and receipt.status != "failed":
        told["error_metadata"] = receipt.error_metadata
    return told


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:SAID_LIMIT]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
