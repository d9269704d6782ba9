"""Structured stdlib logging on top of the events. The library never configures logging; it only speaks.

Every record carries the event's fields as `extra`, so a JSON formatter gets them without parsing text.
"""

from __future__ import annotations

import logging

import msgspec

from redrive import events as ev

logger = logging.getLogger("redrive")

LEVELS: dict[type[ev.Event], int] = {
    ev.WorkerStarted: logging.INFO,
    ev.WorkerStopped: logging.INFO,
    ev.SettleRefused: logging.WARNING,
    ev.LeaseLost: logging.WARNING,
    ev.Reclaimed: logging.WARNING,
    ev.StoreFailed: logging.ERROR,
    ev.StoreRecovered: logging.WARNING,
    ev.Amended: logging.INFO,
    ev.SubscriberFailed: logging.ERROR,
}


def log_event(event: ev.Event) -> None:
    """A subscriber: one line per event worth one, quick when the level is off."""
    level = _finished_level(event) if isinstance(event, ev.Finished) else LEVELS.get(type(event), logging.NOTSET)
    if level == logging.NOTSET or not logger.isEnabledFor(level):
        return
    text = _finished_text(event) if isinstance(event, ev.Finished) else _plain_text(event)
    # `extra` may not shadow the record's own attributes (`name`, `args`, …), so the fields travel in one dict.
    fields = {"event": type(event).__name__, **msgspec.structs.asdict(event)}
    logger.log(level, "%s", one_line(text), extra={"redrive": fields})


def one_line(text: str) -> str:
    """Error texts come from anywhere: control characters must not forge lines or speak to a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _finished_level(event: ev.Finished) -> int:
    if event.state == "dead":
        return logging.ERROR
    return logging.WARNING if event.ending in ("failed", "crashed") else logging.DEBUG


def _finished_text(event: ev.Finished) -> str:
    text = f"{event.queue} {event.id[:8]} {event.ending} (delivery {event.delivery}, {event.ran_ms} ms)"
    if event.error:
        text += f": {event.error}: {event.text}"
    if event.state == "dead":
        return f"{text}; dead letter: {event.reason}, cause {event.cause}"
    return f"{text}; again in {event.retry_in_ms} ms" if event.retry_in_ms is not None else text


def _plain_text(event: ev.Event) -> str:
    fields = msgspec.structs.asdict(event)
    return f"{type(event).__name__} " + " ".join(f"{name}={value}" for name, value in fields.items())
