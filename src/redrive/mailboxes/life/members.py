"""One loop of a group: its thread, its name and its health."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.life.runnable import Runnable
from redrive.observe.endpoint import HEALTHY, UNHEALTHY, Report

STOP_AGAIN = 0.1
"""Seconds until `shutdown` of a loop is called again: the loop may not have started before the first call."""


class Member:
    def __init__(self, loop: Runnable, name: str) -> None:
        self.loop = loop
        self.name = name
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Before the start: the age of the heartbeat is counted from now on."""
        if self.alive:
            message = f"{self.name} still runs: it did not stop in time when the group was stopped"
            raise InvalidParameterError(message, field="loops", hint="wait for it, or start a new process")
        self.error = None
        self.loop.heartbeat.beat()

    def start(self, live: Callable[[Member, dict[str, Any]], None], options: dict[str, Any]) -> None:
        # A daemon thread: a loop that does not stop in time must not keep the process from ending.
        self._thread = threading.Thread(target=live, args=(self, options), name=f"redrive-{self.name}", daemon=True)
        self._thread.start()

    def end_by(self, deadline: float) -> threading.Thread:
        """Call its `shutdown` in a thread of its own, until it has stopped or the deadline is over."""
        ender = threading.Thread(target=self._end, args=(deadline,), name=f"redrive-end-{self.name}", daemon=True)
        ender.start()
        return ender

    def _end(self, deadline: float) -> None:
        thread = self._thread
        while thread is not None and thread.is_alive():
            left = max(0.0, deadline - time.monotonic())
            try:
                self.loop.shutdown(timeout=left)
            except Exception as error:  # noqa: BLE001 - a loop of any kind; it is called again
                text = "Shutdown of a loop failed"
                logs.say(logging.ERROR, text, loop=self.name, error=logs.said(error))
            if not left:
                return
            thread.join(min(left, STOP_AGAIN))

    def log_crash(self, *, restart_in: float | None) -> None:
        error = self.error
        if error is None:
            return
        facts = {"loop": self.name, "error": logs.said(error), "error_type": logs.type_of(error)}
        logs.say(logging.CRITICAL, "Loop crashed", **facts, restart_in_seconds=restart_in)
        logs.logger.debug("%s crashed", self.name, exc_info=error)

    def report(self, stale: float) -> Report:
        running, age = bool(self.loop.running), self.loop.heartbeat.elapsed()
        status = HEALTHY if running and age <= stale else UNHEALTHY
        return {"name": self.name, "status": status, "running": running, "heartbeat_age_seconds": round(age, 3)}


def members_of(loops: Sequence[Runnable]) -> list[Member]:
    """Named after the loop's name or class; a number is added to a name that occurs twice."""
    limits.kind(loops, Sequence, field="loops", hint="give a list, also of one loop")
    if not loops:
        raise InvalidParameterError("the list is empty", field="loops", hint="give at least one loop")
    names: list[str] = []
    given: Sequence[object] = loops
    for loop in given:
        if not isinstance(loop, Runnable):
            hint = "a loop has run, shutdown, running and heartbeat; see redrive.mailboxes.Runnable"
            raise InvalidParameterError(f"{shown(loop)} is not a loop", field="loops", hint=hint)
        name = base = str(getattr(loop, "name", "") or type(loop).__name__)
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    if len({id(loop) for loop in loops}) < len(loops):
        raise InvalidParameterError(
            "a loop is listed twice", field="loops", hint="make a second one, on the same mailbox"
        )
    return [Member(loop, name) for loop, name in zip(loops, names, strict=True)]
