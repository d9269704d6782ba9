"""Transports of receipts: an MCP tool call, a plain POST, or the caller's own function.

A transport makes one attempt, or raises a ReceiptError. The engine decides on retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlunsplit

import msgspec

from redrive.core.item import Millis, error_line
from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.engine.caller import is_async
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
from redrive.net.mcp import call_of, is_answered
from redrive.net.urls import check_http_url, check_token
from redrive.receipts.answers import judge, judge_tool, tool_result
from redrive.receipts.model import Receipt

if TYPE_CHECKING:
    from redrive.net.http import HttpAnswer, HttpClient

Deliver = Callable[[Receipt, str, str | None], Awaitable[object]]
"""The caller's own function: gets the receipt, the idempotency key and the tenant, raises if it was not delivered."""

ANSWER_LIMIT = 1024 * 1024
"""Bytes that are read of the answer to a receipt."""
JOB_LIMIT = 16 * 1024 * 1024
"""Bytes that are read of the answer to a tool call."""
TEXT_LIMIT = 200
FAILED = "FAILED"
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
TOOLS = {"running": "asyncgate.report_progress", "complete": "asyncgate.complete", "failed": "asyncgate.fail"}


class Transport:
    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        """One attempt. `key` is the same for every attempt of one receipt. Raises ReceiptError."""
        raise NotImplementedError


def transport_for(
    transport: str | Deliver, endpoint: str | None, *, auth_token: str | None, timeout: Millis, connections: int
) -> Transport:
    """Raises ConfigError that names the parameter."""
    given: object = transport
    hint = 'use "mcp", "http", or an `async def` of (receipt, key, tenant_id)'
    if callable(given):
        if not is_async(given):
            raise ConfigError(f"{shown(given)} is not async", field="transport", hint=hint)
        return Own(cast("Deliver", given), timeout)
    if given not in ("mcp", "http"):
        raise ConfigError(f"{shown(given)} is not a transport", field="transport", hint=hint)
    kind, url = Mcp if given == "mcp" else Http, check_endpoint(endpoint, mcp=given == "mcp")
    return kind(url, check_token(auth_token, field="auth_token"), timeout, connections)


def check_endpoint(endpoint: object, *, mcp: bool) -> str:
    """The URL to post to; that of an MCP server ends in /mcp."""
    parts = check_http_url(endpoint, field="endpoint", secret="auth_token")  # noqa: S106 - the name of a parameter
    path = parts.path
    if mcp:
        path = path.rstrip("/")
        path = path if path.endswith("/mcp") else f"{path}/mcp"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class Own(Transport):
    """The caller's function. An error that is not a ReceiptError is one of the target, or of the way there."""

    def __init__(self, function: Deliver, timeout: Millis) -> None:
        self._function = function
        self._timeout = timeout

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        try:
            async with asyncio.timeout(self._timeout / 1000):
                await self._function(receipt, key, tenant_id)
        except ReceiptError as error:
            error.message, error.hint = redact_text(error.message), redact_text(error.hint)
            error.args = (error.message,)
            if _without_secrets(error) is None:
                error.__cause__ = None
            raise
        except (OSError, TimeoutError) as error:
            text = f"the target could not be reached: {_text(error)}"
            raise ReceiptUnreachable(text) from _without_secrets(error)
        except Exception as error:  # noqa: BLE001 - it is reported, whatever it is
            raise ReceiptServerError(f"the transport failed: {_text(error)}") from _without_secrets(error)


def _without_secrets(error: BaseException) -> BaseException | None:
    """None if the error, or one of its causes, contains a secret: all of them would be stored."""
    each: BaseException | None = error
    for _ in range(CHAIN_LIMIT):
        if each is None:
            break
        if redact_text(text_of(each)) != text_of(each):
            return None
        each = each.__cause__ or each.__context__
    return error


def _text(error: BaseException) -> str:
    return error_line(type(error).__name__, redact_text(" ".join(str(error).split())[:TEXT_LIMIT]))


class _Wire(Transport):
    """A connection pool for the life of a client, with as many connections as attempts at once."""

    def __init__(self, url: str, token: str, timeout: Millis, connections: int) -> None:
        self._url = url
        self._name = url.partition("?")[0]  # a query may contain a secret
        self._token = token
        self._timeout = timeout
        self._connections = connections
        self._client: HttpClient | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    async def open(self) -> None:
        try:
            from redrive.net.http import HttpClient
        except ImportError:
            text = "the package aiohttp is needed to send receipts over HTTP"
            raise MissingExtra(text, field="transport", hint='pip install "redrive[receipts]"') from None
        # Without a guard: the program itself names the broker.
        client = HttpClient(connections=self._connections)
        await client.open()
        self._client = client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _post(self, body: bytes, key: str, *, limit: int = ANSWER_LIMIT, safe: bool = True) -> HttpAnswer:
        """`safe`: the target recognises a repeat by the key, so it may be sent again."""
        if self._client is None:
            raise ReceiptUnreachable("the transport is not open")
        from redrive.net import http

        post = partial(self._client.post, self._url, body, HEADERS, within=self._timeout, enough=is_answered)
        try:
            return await post(limit=limit, safe=safe, token=self._token, key=key)
        except http.TimedOut:
            raise ReceiptUnreachable(f"{self._name} did not answer within {self._timeout / 1000:g} s") from None
        except http.BrokenAnswer as error:
            raise ReceiptServerError(f"the answer of {self._name} cannot be read: {error}") from None
        except http.Unreachable as error:
            raise ReceiptUnreachable(f"{self._name} could not be reached: {error}") from None
        except http.Unsendable as error:
            raise ReceiptRefused(f"it cannot be sent to {self._name}: {error}") from None


class Http(_Wire):
    """The receipt as JSON, in a POST."""

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        fields = receipt.to_dict() if tenant_id is None else {**receipt.to_dict(), "tenant_id": tenant_id}
        error = judge(await self._post(msgspec.json.encode(fields), key))
        if error is not None:
            raise error


class Mcp(_Wire):
    """A tool call of the Model Context Protocol: JSON-RPC 2.0 over HTTP."""

    async def deliver(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        error = judge_tool(await self._post(call_of(TOOLS[receipt.status], _arguments(receipt, tenant_id), key), key))
        if error is not None:
            raise error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """One call of a tool of the target; gives its result. Raises ReceiptError."""
        key = new_id()
        return tool_result(await self._post(call_of(tool, arguments, key), key, limit=JOB_LIMIT, safe=False))


def _arguments(receipt: Receipt, tenant_id: str | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "worker_id": receipt.worker_id,
        "task_id": receipt.task_id,
        "lease_id": receipt.lease_id,
    }
    if tenant_id is not None:
        arguments["tenant_id"] = tenant_id
    content = {
        **receipt.extra,
        "summary": receipt.summary,
        "artifact_pointers": receipt.artifact_pointers,
        "timestamp": receipt.at,
    }
    metadata = receipt.error_metadata or {}
    if receipt.status == "failed":
        error = {"code": FAILED, "message": receipt.summary} | content | metadata
        return arguments | {"error": error, "retryable": bool(error.pop("retryable", False))}
    if receipt.error_metadata is not None:
        content["error_metadata"] = metadata
    if receipt.status == "running":
        return arguments | {"progress": {"status": receipt.status, **content}}
    artifacts = {"artifacts": receipt.artifact_pointers} if receipt.artifact_pointers else {}
    return arguments | {"result": content} | artifacts
