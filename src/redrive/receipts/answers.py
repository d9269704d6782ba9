"""What a target's answer means: delivered, or why not. Pure: no sockets, no clock.

Brokers say no in three ways besides an HTTP status: a JSON-RPC error inside a 200, a tool result that is flagged as an
error, and an ok result whose text is an error. In all of them the code decides; one that nobody knows is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import Struct

from redrive.core.redact import redact_text
from redrive.errors import (
    ReceiptError,
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
)

LIMITED = "RATE_LIMIT_EXCEEDED"
CODES: dict[str, type[ReceiptError]] = {
    "TASK_NOT_FOUND": ReceiptSuperseded,
    "LEASE_INVALID_OR_EXPIRED": ReceiptSuperseded,
    "LEASE_RENEWAL_LIMIT_EXCEEDED": ReceiptSuperseded,
    "LEASE_LIFETIME_EXCEEDED": ReceiptSuperseded,
    LIMITED: ReceiptLimited,
    "INVALID_STATE_TRANSITION": ReceiptRefused,
    "UNAUTHORIZED": ReceiptRefused,
    "QUOTA_EXCEEDED": ReceiptRefused,
    # JSON-RPC: an invalid request, an unknown method, invalid parameters.
    "-32600": ReceiptRefused,
    "-32601": ReceiptRefused,
    "-32602": ReceiptRefused,
}
"""What becomes of a receipt by the target's code."""

SAID_LIMIT = 200
CODE_LIMIT = 64
LONGEST_WAIT = 86_400.0
"""Nobody is kept waiting for longer than a day, whatever the target asks for."""

_KNOWN = re.compile(r"(?<![A-Z_])(" + "|".join(code for code in CODES if code.isupper()) + r")(?![A-Z_])")
_FAILURE_TEXT = re.compile(rf"(?i:error)(?:\W*$|\s*[:(\[-]| executing tool)|{_KNOWN.pattern}")
_RETRY_AFTER = re.compile(r"retry[\s_-]{0,2}after\W{0,5}([0-9]{1,9}(?:\.[0-9]{1,6})?)", re.IGNORECASE)
_HINTS = {
    "401": "check auth_token",
    "403": "check auth_token and tenant_id",
    "404": "check the endpoint",
    "405": "check the endpoint and the transport",
    "UNAUTHORIZED": "check auth_token and tenant_id",
}
REDIRECTED = "check the endpoint: redirects are not followed"


class Answer(Struct, frozen=True):
    """As it came over the wire. `headers` answer to any spelling, or have names in capitals and small letters as here:
    Content-Type, Retry-After. `key` is the id of a JSON-RPC request.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    key: str = ""


def judge(answer: Answer) -> ReceiptError | None:
    """None: a plain POST was delivered."""
    if not 200 <= answer.status < 300:
        return _by_status(answer)
    value = _json(answer.body)
    if value is _UNREADABLE:
        if "json" in answer.headers.get("Content-Type", "") and answer.body:
            return _unreadable("its answer is no JSON", answer)
        return None
    return _said_in_ok(value)


def judge_tool(answer: Answer) -> ReceiptError | None:
    """None: the tool call succeeded."""
    return _tool(answer)[0]


def tool_result(answer: Answer) -> Any:
    """What the tool gave: its structured content, else its text, read as JSON where it is that. Raises ReceiptError."""
    error, result = _tool(answer)
    if error is not None:
        raise error
    if isinstance(result, dict) and "structuredContent" in result:
        return result["structuredContent"]
    texts = _texts(result)
    if not texts:
        return result
    value = _json(texts[0].encode()) if len(texts) == 1 else _UNREADABLE
    return "\n".join(texts) if value is _UNREADABLE else value


def _tool(answer: Answer) -> tuple[ReceiptError | None, Any]:
    if not 200 <= answer.status < 300:
        return _by_status(answer), None
    reply = _reply(answer)
    if reply is None:
        return _unreadable("its answer is no JSON-RPC reply to the call", answer), None
    if reply.get("error"):
        return _error_of(reply["error"], answer.headers), None
    result = reply.get("result")
    if isinstance(result, dict) and result.get("isError"):
        return _error_of(_flagged(result), answer.headers), None
    for part in _parts(result):
        error = _said_in_ok(part)
        if error is not None:
            return error, None
    return None, result


# --- reading ---------------------------------------------------------------------------------------------------------

_UNREADABLE = object()


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _UNREADABLE


def is_stream(headers: Mapping[str, str]) -> bool:
    """Whether the answer comes as server-sent events."""
    return "text/event-stream" in headers.get("Content-Type", "").lower()


def _reply(answer: Answer) -> dict[str, Any] | None:
    """The JSON-RPC response to our call. Our ids are texts: a text that differs answers another call. Some servers
    give every response the id 1, or none: it is ours if it is the only one, since a request carries one call.
    """
    values = list(_events(answer.body)) if is_stream(answer.headers) else [_json(answer.body)]
    messages = [message for value in values for message in (value if isinstance(value, list) else [value])]
    responses = [each for each in messages if isinstance(each, dict) and ("result" in each or "error" in each)]
    ours = [each for each in responses if each.get("id") == answer.key]
    if not ours and len(responses) == 1:
        ours = [each for each in responses if not isinstance(each.get("id"), str)]
    return ours[0] if ours else None


def has_reply(answer: Answer) -> bool:
    """Whether a stream has said all that we wait for: some servers keep it open after that."""
    return _reply(answer) is not None


def _events(body: bytes) -> Iterator[Any]:
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    # The last one has not ended yet, and counts only if it can be read.
    for event in text.split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        value = _json("\n".join(lines).encode()) if lines else _UNREADABLE
        if value is not _UNREADABLE:
            yield value


def _texts(result: object) -> list[str]:
    content = result.get("content") if isinstance(result, dict) else None
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _parts(result: object) -> Iterator[Any]:
    if isinstance(result, dict) and isinstance(result.get("structuredContent"), dict):
        yield result["structuredContent"]
    for text in _texts(result):
        value = _json(text.encode())
        yield text if value is _UNREADABLE else value


def _flagged(result: dict[str, Any]) -> Any:
    """The first part that names a code, else all that was said."""
    parts = list(_parts(result))
    named = [part for part in parts if _code_of(part)]
    return named[0] if named else "\n".join(_texts(result)) or (parts[0] if parts else "")


# --- judging ---------------------------------------------------------------------------------------------------------


def _by_status(answer: Answer) -> ReceiptError:
    value = _json(answer.body)
    said = value if isinstance(value, dict) else answer.body.decode("utf-8", "replace")
    inner = said.get("error") or said.get("detail") or said if isinstance(said, dict) else said
    code = _code_of(said) or _code_of(inner)
    status = str(answer.status)
    kind = CODES.get(code) or _kind_of(answer.status)
    told = _told(said)
    message = f"the target answered {status}{f': {told}' if told else ''}"
    wait = _wait_of(said, answer.headers)
    hint = REDIRECTED if 300 <= answer.status < 400 else _HINTS.get(status, "")
    return kind(message, code=code if code in CODES else status, retry_after=wait, hint=hint)


def _kind_of(status: int) -> type[ReceiptError]:
    if status == 429:
        return ReceiptLimited
    if status == 410:
        return ReceiptSuperseded
    if status in (408, 425) or status >= 500 or status < 200:
        return ReceiptServerError
    return ReceiptRefused


def _said_in_ok(value: Any) -> ReceiptError | None:
    """The error that an answer with status 200 reports, if it does."""
    if isinstance(value, str):
        return _error_of(value.strip(), {}) if _FAILURE_TEXT.match(value.strip()) else None
    if not isinstance(value, dict):
        return None
    task = value["task"] if isinstance(value.get("task"), dict) else value
    # A broker may echo the task as it is now: the error of a failed task is the one that this receipt reported.
    echo = task.get("status") == "failed"
    refused = (
        any(value.get(name) is False for name in ("ok", "success", "accepted"))
        or value.get("status") == "error"
        or (isinstance(value.get("code"), str) and value["code"] in CODES)
        or (bool(value.get("error") or value.get("error_code")) and not echo)
    )
    return _error_of(value, {}) if refused else None


def _error_of(said: Any, headers: Mapping[str, str]) -> ReceiptError:
    code = _code_of(said)
    kind = CODES.get(code, ReceiptServerError)
    told = _told(said)
    name = f": {code}" if code and code not in told else ""
    message = f"the target refused it{name}" if kind is not ReceiptServerError else f"the target failed{name}"
    message = f"{message}: {told}" if told else message
    return kind(message, code=code, retry_after=_wait_of(said, headers), hint=_HINTS.get(code, ""))


def _unreadable(what: str, answer: Answer) -> ReceiptServerError:
    told = _told(answer.body.decode("utf-8", "replace")) or ("it is blank" if answer.body else "it is empty")
    return ReceiptServerError(f"{what}: {told}", code=str(answer.status))


def _layers(said: Any) -> Iterator[dict[str, Any]]:
    """The objects in which brokers put codes and waits: innermost first, because they are the more exact."""
    if not isinstance(said, dict):
        return
    for name in ("data", "details", "detail", "error"):
        yield from _layers(said.get(name))
    yield said


def _code_of(said: Any) -> str:
    """A code that we know, wherever it stands; else the first that is there; else none."""
    codes: list[str] = []
    for layer in _layers(said):
        for name in ("code", "error_code", "error"):
            value = layer.get(name)
            if isinstance(value, str | int) and not isinstance(value, bool):
                codes.append(str(value)[:CODE_LIMIT])
    for code in codes:
        if code in CODES:
            return code
    known = _KNOWN.search(_text_of(said))
    if known is not None:
        return known[1]
    return next((code for code in codes if re.fullmatch(r"[\w.-]+", code)), "")


def _text_of(said: Any) -> str:
    if isinstance(said, str):
        return said
    texts = [layer.get(name) for layer in _layers(said) for name in ("message", "error", "detail")]
    return "; ".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text))


def _told(said: Any) -> str:
    """For people and evidence: short, one line, without secrets."""
    text = " ".join(redact_text(_text_of(said)[: 4 * SAID_LIMIT]).split())
    return text if len(text) <= SAID_LIMIT else f"{text[: SAID_LIMIT - 1]}…"


def _wait_of(said: Any, headers: Mapping[str, str]) -> float | None:
    waits = [layer.get("retry_after") for layer in _layers(said)]
    found = _RETRY_AFTER.search(_text_of(said))
    for wait in (*waits, None if found is None else found[1], headers.get("Retry-After")):
        seconds = _seconds(wait)
        if seconds is not None:
            return seconds
    return None


def _seconds(wait: object) -> float | None:
    if wait is None or isinstance(wait, bool) or not isinstance(wait, str | int | float):
        return None
    try:
        seconds = float(wait)
    except ValueError:
        return _until(str(wait))
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None


def _until(date: str) -> float | None:
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    seconds = (at - datetime.now(UTC)).total_seconds()
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None
