"""Turns an exception into a Failure: names, texts and frames, bounded, and never the object itself."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

from redrive.core.classify import fingerprint, type_name
from redrive.core.instants import moment
from redrive.core.item import Failure, Frame, Instant, Millis
from redrive.core.policy import Policy

TEXT_LIMIT = 4000
FRAMES_FIRST = 5
FRAMES_LAST = 20
CHAIN_LIMIT = 5
CODE_LIMIT = 64
ENGINE = str(Path(__file__).parent)
"""Our own frames above the handler's say nothing about why it failed."""
CODE_MAX = 10**9


def failure_of(error: BaseException, policy: Policy, *, frames: bool = True) -> Failure:
    """`frames=False` leaves the traceback out, for users to whom speed of failing matters more.

    A group of one (what a TaskGroup makes of a child's error) is that one: its type, text and frames are the evidence.
    """
    for _ in range(CHAIN_LIMIT):
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
    kind = type(error)
    name = type_name(kind)
    text = text_of(error)
    code = code_of(error)
    stack = frames_of(error.__traceback__) if frames else ()
    verdict = policy.classify(kind, code, text)
    return Failure(
        type=name,
        text=_with_chain(error, text),
        category=verdict.category,
        rule=verdict.rule,
        cause=fingerprint(name, text, stack, code),
        action=verdict.action,
        code=code,
        frames=stack,
    )


def plain_failure(kind: str, text: str, category: str, *, key: str = "") -> Failure:
    """A failure without an exception: a crash, an expiry, a word of the handler. `key` is what groups it."""
    return Failure(kind, text, category, rule=f"builtin:{category}", cause=fingerprint(kind, key or text, ()))


def text_of(error: BaseException) -> str:
    try:
        text = str(error) if not isinstance(error, BaseExceptionGroup) else _members(error)
    except BaseException as broken:  # noqa: BLE001 - an error that cannot be printed must still become a letter
        text = f"<{type(error).__name__}, whose __str__ raised {type(broken).__name__}>"
    # What cannot be encoded cannot be stored: lone surrogates become visible escapes.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text)} characters)"


def _members(group: BaseExceptionGroup[BaseException]) -> str:
    told = [f"{type_name(type(one))}: {one}" for one in group.exceptions[:CHAIN_LIMIT]]
    return f"{group.message}: " + "; ".join(told)


def _with_chain(error: BaseException, text: str) -> str:
    seen = {id(error)}
    for _ in range(CHAIN_LIMIT):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        text += f"\ncaused by {type_name(type(cause))}: {text_of(cause)}"
        error = cause
    return text


def frames_of(traceback: TracebackType | None) -> tuple[Frame, ...]:
    """File, line and function only: source lines are read by whoever displays the letter."""
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in walk_tb(traceback)
        if not frame.f_code.co_filename.startswith(ENGINE)
    ]
    if len(frames) > FRAMES_FIRST + FRAMES_LAST:
        frames = frames[:FRAMES_FIRST] + frames[-FRAMES_LAST:]
    return tuple(frames)


def code_of(error: BaseException) -> str | None:
    """The code or status that the error (or the response it carries) bears."""
    for holder in (error, _ask(error, "response")):
        for name in ("code", "status", "status_code"):
            value = _ask(holder, name)
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) < CODE_MAX:
                return str(value)
            if isinstance(value, str) and 0 < len(value) <= CODE_LIMIT:
                return value.encode("utf-8", "backslashreplace").decode()
    return None


def _ask(holder: object, name: str) -> Any:
    """An attribute of an object we know nothing about: a property may raise anything."""
    try:
        return getattr(holder, name, None)
    except BaseException:  # noqa: BLE001 - see above
        return None


def hint_of(error: BaseException, now: Instant) -> Millis | None:
    """How long the other side asks us to wait: `error.retry_after` or the Retry-After header of its response.

    A wait of nothing (or a date that is past by our clock) is no hint: obeying it would burn all attempts at once.
    """
    try:
        value = _ask(error, "retry_after")
        if value is None:
            headers = _ask(_ask(error, "response"), "headers")
            value = None if headers is None else headers.get("Retry-After")
        return as_delay(value, now) or None
    except BaseException:  # noqa: BLE001 - a strange error object is no reason to fail differently
        return None


def as_delay(value: object, now: Instant) -> Millis | None:
    """A Retry-After: seconds, a timedelta or an HTTP date; None if it is none of them."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        if hasattr(value, "total_seconds"):
            value = value.total_seconds()
        seconds = float(value)  # type: ignore[arg-type]  # anything else raises and is read as a date
        return max(0, int(min(seconds, 1e9) * 1000)) if seconds == seconds else None  # noqa: PLR0124 - not a NaN
    except (TypeError, ValueError):
        return _date_delay(str(value), now)


def _date_delay(text: str, now: Instant) -> Millis | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0, int((at - moment(now)).total_seconds() * 1000))
