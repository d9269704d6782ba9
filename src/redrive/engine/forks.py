"""A child that the user's code forks, and that comes to the end of that code: what its parent has in hand is not its.

It has a copy of the loop, of what is worked on and of the way to the store. If it went on, it would end what the parent
still works on, and then take more.
"""

from __future__ import annotations

import os
from types import TracebackType

from redrive.engine.threads import leave


class _ParentOnly:
    """No generator: it stands around every call of a handler."""

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            leave(error)


def parent_only() -> _ParentOnly:
    """What is called in the block may fork: a child ends where the block does, as a program would."""
    return _ParentOnly()
