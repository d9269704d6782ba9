"""Classifies the answer of a target: delivered, or the ReceiptError that says why not. Opens no sockets.

Besides an HTTP status, a broker can refuse in three ways: a JSON-RPC error inside a 200, a tool result that is flagged
as an error, and an ok result whose text is an error. The code decides in all of them; an unknown code is retried.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redrive.core.quantity import cut
from redrive.core.redact import redact_text
from redrive.engine.evidence import as_delay
from redrive.errors import (
    ReceiptError,
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
)
from redrive.net.mcp import UNREADABLE, decode, parts_of, reply_of, texts_of

if TYPE_CHECKING:
    from redrive.net.http import HttpAnswer

CODES: dict[str, type[ReceiptError]] = {
    "TASK_NOT_FOUND": ReceiptSuperseded,
    "LEASE_INVALID_OR_EXPIRED": ReceiptSuperseded,
    "LEASE_RENEWAL_LIMIT_EXCEEDED": ReceiptSuperseded,
    "LEASE_LIFETIME_EXCEEDED": ReceiptSuperseded,
    "RATE_LIMIT_EXCEEDED": ReceiptLimited,
    "INVALID_STATE_TRANSITION": ReceiptRefused,
    "UNAUTHORIZED": ReceiptRefused,
    "QUOTA_EXCEEDED": ReceiptRefused,
    # JSON-RPC: an invalid request, an unknown method, invalid parameters.
    "-32600": ReceiptRefused,
    "-32601": ReceiptRefused,
    "-32602": ReceiptRefused,
}
"""The error of each known code."""

TEXT_LIMIT = 200
CODE_LIMIT = 64
LONGEST_WAIT = 86_400.0
"""Seconds: the longest wait that a target may ask for."""

_KNOWN = re.compile(r"(?<![A-Z_])(" + "|".join(code for code in CODES if code.isupper()) + r")(?![A-Z_])")
_ERROR_TEXT = re.compile(rf"(?i:error)(?:\W*$|\s*[:(\[-]| executing tool)|{_KNOWN.pattern}")
_RETRY_AFTER = re.compile(r"retry[\s_-]{0,2}after\W{0,5}([0-9]{1,9}(?:\.[0-9]{1,6})?)", re.IGNORECASE)
_HINTS = {
    "401": "check auth_token",
    "403": "check auth_token and tenant_id",
    "404": "check the endpoint",
    "405": "check the endpoint and the transport",
    "UNAUTHORIZED": "check auth_token and tenant_id",
}
_REDIRECTED = "check the endpoint: redirects are not followed"


def judge(answer: HttpAnswer) -> ReceiptError | None:
    """None: a plain POST was delivered."""
    if not 200 <= answer.status < 300:
        return _by_status(answer)
    value = decode(answer.body)
    if value is not UNREADABLE:
        return _error_in_ok(value)
    is_json = "json" in answer.headers.get("Content-Type", "") and answer.body
    return _unreadable("its answer is not JSON", answer) if is_json else None


def judge_tool(answer: HttpAnswer) -> ReceiptError | None:
    """None: the tool call succeeded."""
    return _tool(answer)[0]


def tool_result(answer: HttpAnswer) -> Any:
    """The structured content of the result, else its text, decoded if it is JSON. Raises ReceiptError."""
    error, result = _tool(answer)
    if error is not None:
        raise error
    if isinstance(result, dict) and "structuredContent" in result:
        return result["structuredContent"]
    texts = texts_of(result)
    if not texts:
        return result
    value = decode(texts[0].encode()) if len(texts) == 1 else UNREADABLE
    return "\n".join(texts) if value is UNREADABLE else value


def _tool(answer: HttpAnswer) -> tuple[ReceiptError | None, Any]:
    if not 200 <= answer.status < 300:
        return _by_status(answer), None
    reply = reply_of(answer)
    if reply is None:
        return _unreadable("its answer is not a JSON-RPC reply to the call", answer), None
    if reply.get("error"):
        return _error_of(reply["error"], answer.headers), None
    result = reply.get("result")
    if isinstance(result, dict) and result.get("isError"):
        parts = list(parts_of(result))
        named = [part for part in parts if _code_of(part)]
        flagged = named[0] if named else "\n".join(texts_of(result)) or (parts[0] if parts else "")
        return _error_of(flagged, answer.headers), None
    errors = (error for part in parts_of(result) if (error := _error_in_ok(part)) is not None)
    return next(errors, None), result


def _by_status(answer: HttpAnswer) -> ReceiptError:
    value = decode(answer.body)
    content = value if isinstance(value, dict) else answer.body.decode("utf-8", "replace")
    inner = content.get("error") or content.get("detail") or content if isinstance(content, dict) else content
    code = _code_of(content) or _code_of(inner)
    status, text = str(answer.status), _short_text(content)
    message = f"the target answered {status}{f': {text}' if text else ''}"
    hint = _REDIRECTED if 300 <= answer.status < 400 else _HINTS.get(status, "")
    kind = CODES.get(code) or _kind_of(answer.status)
    wait = _wait_of(content, answer.headers)
    return kind(message, code=code if code in CODES else status, retry_after=wait, hint=hint)


def _kind_of(status: int) -> type[ReceiptError]:
    if status == 429:
        return ReceiptLimited
    if status == 410:
        return ReceiptSuperseded
    if status in (408, 425) or status >= 500 or status < 200:
        return ReceiptServerError
    return ReceiptRefused


def _error_in_ok(value: Any) -> ReceiptError | None:
    """The error that an answer with status 200 contains, if it does."""
    if isinstance(value, str):
        return _error_of(value.strip(), {}) if _ERROR_TEXT.match(value.strip()) else None
    if not isinstance(value, dict):
        return None
    task = value["task"] if isinstance(value.get("task"), dict) else value
    # A broker may echo the task: the error of a failed task is the one that this receipt reported.
    echo = task.get("status") == "failed"
    refused = (
        any(value.get(name) is False for name in ("ok", "success", "accepted"))
        or value.get("status") == "error"
        or (isinstance(value.get("code"), str) and value["code"] in CODES)
        or (bool(value.get("error") or value.get("error_code")) and not echo)
    )
    return _error_of(value, {}) if refused else None


def _error_of(content: Any, headers: Mapping[str, str]) -> ReceiptError:
    code, text = _code_of(content), _short_text(content)
    kind = CODES.get(code, ReceiptServerError)
    message = "the target failed" if kind is ReceiptServerError else "the target refused it"
    message = ": ".join([message, *([code] if code not in text else []), *([text] if text else [])])
    return kind(message, code=code, retry_after=_wait_of(content, headers), hint=_HINTS.get(code, ""))


def _unreadable(what: str, answer: HttpAnswer) -> ReceiptServerError:
    text = _short_text(answer.body.decode("utf-8", "replace")) or ("it is blank" if answer.body else "it is empty")
    return ReceiptServerError(f"{what}: {text}", code=str(answer.status))


def _layers(content: Any) -> Iterator[dict[str, Any]]:
    """The objects in which brokers put codes and waits: innermost first, since they are more exact."""
    if isinstance(content, dict):
        for name in ("data", "details", "detail", "error"):
            yield from _layers(content.get(name))
        yield content


def _code_of(content: Any) -> str:
    """A known code at any place; else the first code; else ""."""
    values = (layer.get(name) for layer in _layers(content) for name in ("code", "error_code", "error"))
    codes = [str(each)[:CODE_LIMIT] for each in values if isinstance(each, str | int) and not isinstance(each, bool)]
    known = next((code for code in codes if code in CODES), None)
    if known is not None:
        return known
    found = _KNOWN.search(_text_of(content))
    return found[1] if found is not None else next((code for code in codes if re.fullmatch(r"[\w.-]+", code)), "")


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [layer.get(name) for layer in _layers(content) for name in ("message", "error", "detail")]
    return "; ".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text))


def _short_text(content: Any) -> str:
    """For people and evidence: short, one line, without secrets."""
    return cut(" ".join(redact_text(_text_of(content)[: 4 * TEXT_LIMIT]).split()), TEXT_LIMIT)


def _wait_of(content: Any, headers: Mapping[str, str]) -> float | None:
    """Seconds until the next attempt, by a field, the text or the header."""
    found = _RETRY_AFTER.search(_text_of(content))
    waits = [layer.get("retry_after") for layer in _layers(content)]
    for wait in (*waits, None if found is None else found[1], headers.get("Retry-After")):
        millis = as_delay(wait, round(time.time() * 1000)) if isinstance(wait, str | int | float) else None
        if millis:
            return min(millis / 1000, LONGEST_WAIT)
    return None
