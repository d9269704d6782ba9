"""Tool calls of the Model Context Protocol over HTTP: the JSON-RPC request, and the reply in an answer. No sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from redrive.net.http import HttpAnswer

UNREADABLE: Any = object()
"""The value of what is not JSON."""


def call_of(tool: str, arguments: Mapping[str, Any], key: str) -> bytes:
    """The body of the request; `key` is its id."""
    params = {"name": tool, "arguments": arguments}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": key, "method": "tools/call", "params": params})


def decode(data: bytes) -> Any:
    """The JSON value, or UNREADABLE."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return UNREADABLE


def is_stream(headers: Mapping[str, str]) -> bool:
    """Whether the answer is a stream of server-sent events."""
    return "text/event-stream" in headers.get("Content-Type", "").lower()


def is_answered(part: HttpAnswer) -> bool:
    """Whether the part of a stream that has come contains the response: a stream may stay open after that."""
    return is_stream(part.headers) and reply_of(part) is not None


def reply_of(answer: HttpAnswer) -> dict[str, Any] | None:
    """The JSON-RPC response to our call, whose id is the key. Our ids are strings: another string answers another call.
    Some servers give every response the id 1, or none: such a response is ours if it is the only one.
    """
    values = list(_events(answer.body)) if is_stream(answer.headers) else [decode(answer.body)]
    messages = [message for value in values for message in (value if isinstance(value, list) else [value])]
    responses = [each for each in messages if isinstance(each, dict) and ("result" in each or "error" in each)]
    ours = [each for each in responses if each.get("id") == answer.key]
    if not ours and len(responses) == 1:
        ours = [each for each in responses if not isinstance(each.get("id"), str)]
    return ours[0] if ours else None


def _events(body: bytes) -> Iterator[Any]:
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    # The last event may be incomplete, and counts only if it can be read.
    for event in text.split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        value = decode("\n".join(lines).encode()) if lines else UNREADABLE
        if value is not UNREADABLE:
            yield value


def texts_of(result: object) -> list[str]:
    """The texts in the content of a tool result."""
    content = result.get("content") if isinstance(result, dict) else None
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def parts_of(result: object) -> Iterator[Any]:
    """The structured content of a tool result, and its texts, decoded if they are JSON."""
    if isinstance(result, dict) and isinstance(result.get("structuredContent"), dict):
        yield result["structuredContent"]
    for text in texts_of(result):
        value = decode(text.encode())
        yield text if value is UNREADABLE else value
