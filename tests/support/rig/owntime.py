"""How long something took a process, less what the machine kept from it: a bound that holds on a busy machine too.

The kernel tells of every thread for how long it could have run and had no processor. Where a whole machine stands still
nobody is told of it, but whoever looks often finds a gap between two looks.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic

PROC = Path("/proc")
GAP = 0.1
"""Seconds between two looks that nobody meant to let pass."""


class OwnTime:
    """Of one process, from now on. Look at it all the time."""

    def __init__(self, pid: int) -> None:
        self._threads = PROC / str(pid) / "task"
        self._began = self._looked = monotonic()
        self._before = self._after = self._waits()
        self._stood = 0.0

    def look(self) -> float:
        """Seconds of its own so far."""
        now = monotonic()
        self._stood += now - self._looked if now - self._looked > GAP else 0.0
        self._looked = now
        self._after = self._after | self._waits()  # who has ended meanwhile had waited too
        waited = sum(self._after.values()) - sum(self._before.get(thread, 0.0) for thread in self._after)
        return now - self._began - max(waited, self._stood)

    def _waits(self) -> dict[str, float]:
        found = {}
        with suppress(OSError):  # it has just ended
            for thread in self._threads.iterdir():
                with suppress(OSError, IndexError):  # the same, or a kernel that does not count
                    found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return found
