"""No connection is open while the process forks.

SQLite keeps its locks in the process's memory: a child that inherits an open database believes it holds locks which
only its parent has, even on connections that it opens itself. So every connection is closed before a fork and opened
again after it, when it is next needed; the child starts with nothing and opens its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Pause:
    """`closed` is set by the thread that has closed its connection, `over` when it may open one again."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.over = threading.Event()


class Pausable(Protocol):
    def pause(self) -> Pause | None:
        """Ask for the connection to be closed; None if there is none."""


class _Forks:
    def __init__(self) -> None:
        self.threads: weakref.WeakSet[Pausable] = weakref.WeakSet()
        self.pauses: list[Pause] = []
        self.gate = threading.Condition()
        self.visitors = 0

    def before(self) -> None:
        self.gate.acquire()
        while self.visitors:
            self.gate.wait()
        self.pauses = [pause for thread in list(self.threads) if (pause := thread.pause()) is not None]
        for pause in self.pauses:
            pause.closed.wait()

    def after_in_parent(self) -> None:
        for pause in self.pauses:
            pause.over.set()
        self.pauses = []
        self.gate.release()


_forks = _Forks()


@contextmanager
def connected(thread: Pausable | None = None) -> Iterator[None]:
    """A fork waits while somebody is in here: opening a connection, or having one that cannot be paused.

    The thread that opened one in here will be asked to pause.
    """
    forks = _forks
    with forks.gate:
        forks.visitors += 1
    try:
        yield
        if thread is not None:
            forks.threads.add(thread)
    finally:
        with forks.gate:
            forks.visitors -= 1
            forks.gate.notify_all()


def _before() -> None:
    _forks.before()


def _after_in_parent() -> None:
    _forks.after_in_parent()


def _after_in_child() -> None:
    global _forks  # noqa: PLW0603 - its threads are not in the child
    _forks = _Forks()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
