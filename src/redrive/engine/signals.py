"""What a handler may raise (or return) besides its result. Each becomes one Outcome in `runner`, nowhere else."""

from __future__ import annotations

from redrive.core.durations import Duration, parse
from redrive.core.item import Millis


class Signal(Exception):
    """Base of the four. `raise Retry(...) from error` keeps the error as the evidence."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "redrive"  # where users import it from, and so what letters call it


class Retry(Signal):
    """It failed; try again `after` this long (or when the policy says). Counts as an error."""

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after: Millis | None = None if after is None else parse(after, field="Retry.after")


class Dead(Signal):
    """Trying again is useless: make it a dead letter now."""

    letter_reason = "handler"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Signal):
    """Not now, and no fault of the item: come back `after` this long, uncharged."""

    def __init__(self, after: Duration, *, note: str = "") -> None:
        super().__init__(note)
        self.note = note
        self.after: Millis = parse(after, field="Snooze.after")


class Cancel(Signal):
    """Nobody wants it any more, and that is no failure: it ends as cancelled, with this reason in its history."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
