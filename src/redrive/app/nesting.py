"""Context managers that may be nested: the end of the outermost block closes the object."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Nesting:
    """Counts the blocks that are open, from any thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._count += 1

    def leave(self) -> bool:
        """True for the last block."""
        with self._lock:
            self._count -= 1
            return self._count == 0


class AsyncLifecycle:
    _nesting: Nesting

    async def open(self) -> Self:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        self._nesting.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nesting.leave():
            await self.close()
