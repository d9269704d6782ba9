"""R10: eight ways to take the whole process along. None of them returns, and none of them hurts the machine."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NoReturn

MIB = 1024 * 1024
MOST = 400 * MIB
"""Nobody may take more than this, even if the supervisor is asleep."""
STACK = 8 * MIB


def bad_pointer() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)  # the only way to leave without unwinding


def eat_memory() -> NoReturn:
    """Every page is written to, so that it is really taken."""
    taken = []
    for _ in range(0, MOST, 8 * MIB):
        taken.append(b"x" * (8 * MIB))
        time.sleep(0.002)  # noqa: TID251 - as any allocation of real use: the watcher gets a chance in between
    while True:
        time.sleep(1)  # noqa: TID251 - holds what it has until it is killed


def overflow_the_stack() -> None:
    """Recursion in C, where no RecursionError helps."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK if most == resource.RLIM_INFINITY else min(STACK, most), most))
    recurse: Callable[[], None] = getattr(faulthandler, "_stack_overflow")  # noqa: B009 - CPython's own, for its tests
    recurse()


def loop_for_ever() -> NoReturn:
    for _ in itertools.count():
        pass
    raise AssertionError


def take_descriptors() -> None:
    """All there are, and for good: nobody closes a bare descriptor."""
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return


async def eat_descriptors() -> None:
    """Keeps them and waits for what can no longer come."""
    take_descriptors()
    await asyncio.Event().wait()


DEATHS: dict[str, tuple[Callable[[], object], str]] = {
    "segfault": (bad_pointer, "killed by SIGSEGV"),
    "kill": (kill_itself, "killed by SIGKILL"),
    "exit": (leave, "exited with code 3"),
    "memory": (eat_memory, "over the memory limit"),
    "stack": (overflow_the_stack, "killed by SIGSEGV"),
    "abort": (os.abort, "killed by SIGABRT"),
    "descriptors": (eat_descriptors, "out of file descriptors"),
    "loop": (loop_for_ever, "stood still"),
}
"""How to die, and what the letter must say about it."""


async def die(death: str) -> None:
    answer = DEATHS[death][0]()
    if asyncio.iscoroutine(answer):
        await answer
    raise AssertionError(f"{death} was survived")
