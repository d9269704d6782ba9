"""Who is inside `with client:`. Whoever goes last closes it: a `with` inside another one must not end that too."""

from __future__ import annotations

import threading


class Inside:
    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._count += 1

    def leave(self) -> bool:
        """True for the last one."""
        with self._lock:
            self._count -= 1
            return self._count == 0
