"""Whether a loop has come to rest: nobody in it has a turn left, and nothing from outside can give one.

asyncio has no public way to ask. A loop that cannot tell is never said to be at rest.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Collection, Sized

TWICE = 2
"""Between two turns with nothing to run the loop also looks for news of sockets and threads."""
EAR = "redrive.stores.postgres.wake"
OWN_PIPE = 1
"""Through which threads wake a loop; every loop watches it."""


class Rest:
    def __init__(self, loop: asyncio.AbstractEventLoop, silent: Collection[threading.Thread]) -> None:
        """`silent`: threads that wake nobody unasked."""
        self._ready: Sized | None = getattr(loop, "_ready", None)
        self._selector = getattr(loop, "_selector", None)
        self._silent = silent
        self._idle = 0

    def reached(self) -> bool:
        """To be asked in every turn. Says so once, until somebody acts again."""
        self._idle = self._idle + 1 if self._ready is not None and not self._ready else 0
        return self._idle == TWICE

    def alone(self) -> bool:
        """No socket and no thread is there that could wake somebody, as a server's message or a handler's end does."""
        if self._selector is None or sum(map(_may_wake, self._selector.get_map().values())) > OWN_PIPE:
            return False
        return all(thread in self._silent for thread in threading.enumerate())


def _may_wake(watched: selectors.SelectorKey) -> bool:
    """Not the ear of PostgreSQL: it takes no notice of what its own store says, and a lab has only one."""
    reader, _ = watched.data
    callback = getattr(reader, "_callback", None)
    return getattr(callback, "__module__", "") != EAR
