"""Open resources of this process: file descriptors, threads, child processes, temporary folders.

Most belong to one test, and `leaks` sees to it that they end with it. Those that tests share are opened in `lasting`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
THREADS = "/proc/self/task"


class Held(NamedTuple):
    """Open resources of this process."""

    descriptors: frozenset[str]
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    def without(self, other: Held) -> Held:
        return Held(self.descriptors - other.descriptors, self.threads - other.threads, self.children - other.children)

    def both(self, other: Held) -> Held:
        return Held(self.descriptors | other.descriptors, self.threads | other.threads, self.children | other.children)

    def still(self, other: Held) -> Held:
        return Held(self.descriptors & other.descriptors, self.threads & other.threads, self.children & other.children)


NOTHING = Held(frozenset(), frozenset(), frozenset())


class State:
    """Of this process."""

    lasting = NOTHING
    """Resources that are meant to outlive the test that opened them."""
    depth = 0
    """Above 0 while such resources are opened."""
    folders: set[str] = set()  # noqa: RUF012 - there is one state
    """Temporary folders made since the last test."""
    make_folder: Callable[..., Any] | None = None


def held() -> Held:
    """Quick to compare; with the descriptor of the listing itself, which is the lowest free one."""
    return Held(frozenset(os.listdir(DESCRIPTORS)), frozenset(threading.enumerate()), _children())  # noqa: PTH208 - quick


def _children() -> frozenset[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    found: set[int] = set()
    for thread in os.listdir(THREADS) if Path(THREADS).exists() else ():  # noqa: PTH208 - quick
        with contextlib.suppress(OSError):
            found.update(map(int, Path(THREADS, thread, "children").read_text().split()))
    return frozenset(found)


def _open(descriptor: str) -> bool:
    try:
        os.fstat(int(descriptor))
    except OSError:
        return False
    return True


def exact(found: Held) -> Held:
    """Without the descriptor of the listing, and threads that Python did not start."""
    return Held(
        frozenset(filter(_open, found.descriptors)),
        frozenset(t for t in found.threads if t.is_alive() and not isinstance(t, threading._DummyThread)),  # noqa: SLF001
        found.children,
    )


def of_multiprocessing() -> Held:
    """Its resource tracker, which starts with the first use and ends with the process."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    if module is None or module._resource_tracker._pid is None:  # noqa: SLF001 - there is no public way
        return NOTHING
    tracker = module._resource_tracker  # noqa: SLF001 - see above
    return Held(frozenset({str(tracker._fd)}), frozenset(), frozenset({tracker._pid}))  # noqa: SLF001 - see above


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """What is opened here is shared by tests: a server, its client, a cache."""
    before, folders = exact(held()), set(State.folders)
    State.depth += 1
    try:
        yield
    finally:
        State.depth -= 1
        State.lasting = State.lasting.both(exact(held()).without(before))
        State.folders &= folders


def keep(descriptor: int) -> None:
    """It rests until another test takes it."""
    State.lasting = State.lasting.both(NOTHING._replace(descriptors=frozenset({str(descriptor)})))


def release(descriptor: int) -> None:
    """The test that takes it has to close it, or to give it back."""
    State.lasting = State.lasting.without(NOTHING._replace(descriptors=frozenset({str(descriptor)})))


def record_folders() -> None:
    if State.make_folder is not None:
        return
    State.make_folder = make = tempfile.mkdtemp

    def recorded(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        State.folders.add(os.fsdecode(made))
        return made

    vars(tempfile)["mkdtemp"] = recorded
