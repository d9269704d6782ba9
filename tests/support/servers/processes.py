"""Processes by id: who belongs to them, waiting for their end, and what Python lacks for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LIMIT = 60.0
"""Seconds, against what hangs: a busy machine takes its time."""
STILL = frozenset("TtZX")
"""Stopped, or dead."""

_PARENT_DEATH_SIGNAL = 1
_REMOVE_SEGMENT = 0

_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, by: signal.Signals) -> None:
    """If `parent`, the process that started us, ends in whatever way, the kernel sends us that signal.

    The kernel means the very thread that started us: only a process with one thread should be such a parent.
    """
    if _libc.prctl(_PARENT_DEATH_SIGNAL, int(by), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)  # between fork and exec there is nobody to catch an exception


def remove_segment(number: int) -> None:
    """A killed PostgreSQL leaves its small System V segment behind; the system has only some thousand of them."""
    _libc.shmctl(number, _REMOVE_SEGMENT, None)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def send(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


def freeze(pid: int) -> list[int]:
    """Stop a process and its children; all their ids. The parent first, so that no further child is born."""
    _freeze([pid])
    family = [pid, *children(pid)]
    _freeze(family)
    return family


def _freeze(pids: Sequence[int]) -> None:
    """Returns when all stand still: a process that is in the kernel takes the signal only on its way out."""
    for pid in pids:
        send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT
    for pid in pids:
        while state(pid) not in STILL:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} does not stop within {LIMIT} s")
            time.sleep(0.0005)  # noqa: TID251 - another process needs real time


def state(pid: int) -> str:
    """As ps has it: R, S, D, T and so on; X for one that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def thaw(pid: int) -> None:
    for each in [*children(pid), pid]:
        send(each, signal.SIGCONT)


def annihilate(pid: int) -> None:
    """SIGKILL for a process and its children at one moment; returns when all are gone."""
    family = freeze(pid)
    with watching(family) as fds:
        for each in family:
            send(each, signal.SIGKILL)
        if not all_ended(fds, LIMIT):
            raise TimeoutError(f"processes {family} outlive SIGKILL by {LIMIT} s")


def alive(pid: int) -> bool:
    with watching([pid]) as fds:
        return not all_ended(fds, 0)


@contextlib.contextmanager
def watching(pids: Iterable[int]) -> Iterator[list[int]]:
    """Descriptors that become readable when their process ends; the kernel tells it of zombies too, unlike `kill 0`."""
    fds: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fds.append(os.pidfd_open(pid))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def all_ended(fds: Iterable[int], limit: float) -> bool:
    """Wait at most so many seconds for the end of all that `watching` gave."""
    deadline = time.monotonic() + limit
    waiting = set(fds)
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        ended, _, _ = select.select(waiting, [], [], left)
        if not ended:
            return False
        waiting.difference_update(ended)
    return True
