"""How deep a mailbox is, for probes: they must get an answer even when the store gives none."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redrive.core.redact import redact_text
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.logs import said

ASK_TIMEOUT = 2.0
"""Seconds that a probe waits for the store; after that it is told the last depth we know."""


@dataclass(frozen=True)
class Known:
    """`depth` None: it was never known. `error`: why it may be out of date."""

    depth: int | None = None
    error: str = ""


class Depth:
    """Asked from any thread, also that of an event loop. At most one question is on its way, however many ask."""

    def __init__(self, mailbox: Mailbox[Any, Any]) -> None:
        self.mailbox = mailbox
        self._lock = threading.Lock()
        self._known = Known()
        self._answered: threading.Event | None = None

    def ask(self, timeout: float = ASK_TIMEOUT) -> Known:
        return ask_all([self], timeout)[0]

    def begin(self) -> threading.Event:
        """Ask, if nobody does; the event is set when there is an answer."""
        with self._lock:
            answered = self._answered
            if answered is None:
                answered = self._answered = threading.Event()
                threading.Thread(target=self._ask, args=(answered,), name="redrive-depth", daemon=True).start()
        return answered

    def known(self, *, error: str = "") -> Known:
        """What was answered last."""
        return Known(self._known.depth, error) if error else self._known

    def _ask(self, answered: threading.Event) -> None:
        try:
            self._known = Known(self.mailbox.approximate_count())
        except Exception as error:  # noqa: BLE001 - a mailbox of any kind; the probe reports it
            self._known = Known(self._known.depth, redact_text(said(error)) or type(error).__name__)
        with self._lock:
            self._answered = None
        answered.set()


def ask_all(depths: Sequence[Depth], timeout: float = ASK_TIMEOUT) -> list[Known]:
    """All at once, and together they have one timeout."""
    deadline = time.monotonic() + timeout
    asked = [(depth, depth.begin()) for depth in depths]
    return [
        depth.known(error="" if answered.wait(max(0.0, deadline - time.monotonic())) else _late(timeout))
        for depth, answered in asked
    ]


def _late(timeout: float) -> str:
    return f"no answer within {timeout:g} s"
