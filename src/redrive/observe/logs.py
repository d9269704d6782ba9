"""Structured stdlib logging on top of the events. The library never configures logging; it only speaks.

Every record carries the event's fields as `extra`, so a JSON formatter gets them without parsing text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from traceback import TracebackException
from typing import Any

import msgspec

from redrive import events as ev
from redrive.core import durations
from redrive.core.item import short_id
from redrive.core.redact import redact_text

_FRAME = re.compile(r'[ |+-]*File "')
logger = logging.getLogger("redrive")

LINES: dict[type[ev.Event], tuple[int, str]] = {
    ev.WorkerStarted: (logging.INFO, "worker {worker} started for {queues}"),
    ev.WorkerStopped: (logging.INFO, "worker {worker} stopped, {released} released"),
    ev.WorkerOrdered: (logging.WARNING, "worker {worker}: {word}, asked by {by} ({reason})"),
    ev.SettleRefused: (logging.WARNING, "{queue} {id} result of delivery {delivery} refused: {reason}"),
    ev.LeaseLost: (logging.WARNING, "{queue} {id} lease of delivery {delivery} lost, handler cancelled"),
    ev.CancelAsked: (logging.INFO, "{queue} {id} asked to cancel: {reason}"),
    ev.Cancelled: (logging.INFO, "{queue} {id} cancelled: {reason}"),
    ev.RouteFull: (logging.ERROR, "route {route} is full: {kept} kept live, such as {queue} {id}"),
    ev.GateOpened: (logging.WARNING, "gate {gate} opened: {why}; first probe in {probe_in_ms} ms"),
    ev.GateClosed: (logging.WARNING, "gate {gate} closed: {why}"),
    ev.TicksMissed: (logging.WARNING, "schedule {schedule}: {missed} ticks missed, {fired} fired now ({reason})"),
    ev.Swept: (logging.INFO, "retention: {pruned} items and {results} results removed"),
    ev.Reclaimed: (logging.WARNING, "{queue} {id} reclaimed from {lost_by}, which was not heard of again"),
    ev.StoreFailed: (logging.ERROR, "store failed ({part} asks again): {error}"),
    ev.StoreRecovered: (logging.WARNING, "store recovered ({part})"),
    ev.Amended: (logging.INFO, "{change} by {actor}: {changed} changed, {skipped} skipped ({reason})"),
    ev.SubscriberFailed: (logging.ERROR, "subscriber {subscriber} failed: {error}"),
}


def log_event(event: ev.Event) -> None:
    """A subscriber: one line per event worth one, quick when the level is off."""
    line = ""
    if isinstance(event, ev.Finished):
        level = _finished_level(event)
    else:
        level, line = LINES.get(type(event), (logging.NOTSET, ""))
    if level == logging.NOTSET or not logger.isEnabledFor(level):
        return
    # Error texts and reasons come from anywhere, and logs go everywhere.
    fields = {
        name: redact_text(value) if isinstance(value, str) else value
        for name, value in msgspec.structs.asdict(event).items()
    }
    text = _finished_text(event) if isinstance(event, ev.Finished) else line.format(**_readable(fields))
    # `extra` may not shadow the record's own attributes (`name`, `args`, …), so the fields travel in one dict.
    logger.log(level, "%s", one_line(text), extra={"redrive": {"event": type(event).__name__, **fields}})


def log(to: logging.Logger, level: int, text: str, /, *, trace: BaseException | None = None, **fields: Any) -> None:
    """Log `text` and the fields that are not None as one line; the fields are also in `record.redrive`. A field that is
    an exception is logged by its text.

    Secrets are redacted and long values are cut. The traceback of `trace` follows in indented lines; in `exc_info`
    every formatter would print it as it is.
    """
    if to.isEnabledFor(level):
        plain = {name: _plain(value) for name, value in {"event": text, **fields}.items()}
        values = (value if name == "event" else f"{name}={value}" for name, value in plain.items() if value is not None)
        lines = [one_line(" ".join(map(str, values))), *(f"  {line}" for line in _trace_lines(trace))]
        to.log(level, "%s", "\n".join(lines), extra={"redrive": plain}, stacklevel=2)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    from redrive.engine.evidence import TEXT_LIMIT, text_of

    if isinstance(value, BaseException):
        return redact_text(text_of(value))
    text = str(value)
    # Cut before secrets are looked for: the search takes seconds for megabytes.
    return redact_text(text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text):,} characters)")


def _trace_lines(error: BaseException | None) -> Iterator[str]:
    for part in () if error is None else TracebackException.from_exception(error).format():
        # A frame has a line of source below it; elsewhere a line break is one of the error's text.
        lines = part.rstrip("\n").split("\n") if _FRAME.match(part) else [part.strip("\n")]
        yield from (one_line(str(_plain(line))) for line in lines)


def one_line(text: str) -> str:
    """Error texts come from anywhere: control characters must not forge lines or speak to a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _finished_level(event: ev.Finished) -> int:
    if event.state == "dead":
        return logging.ERROR
    if event.ending == "limited":
        return logging.INFO
    return logging.WARNING if event.ending in ("failed", "crashed") else logging.DEBUG


def _finished_text(event: ev.Finished) -> str:
    text = f"{event.queue} {short_id(event.id)} {event.ending} (delivery {event.delivery}, {event.ran_ms} ms)"
    if event.error:
        text += f": {event.error}: {redact_text(event.text)}"
    if event.state == "dead":
        return f"{text}; dead letter: {event.reason}, cause {event.cause}"
    return f"{text}; again in {durations.format(event.retry_in_ms)}" if event.retry_in_ms is not None else text


def _readable(fields: dict[str, Any]) -> dict[str, Any]:
    short = {"id": short_id(fields["id"])} if "id" in fields else {}
    return fields | short | {name: ", ".join(value) for name, value in fields.items() if isinstance(value, tuple)}
