"""A leak detector: a test fails in its own teardown if it leaves a resource open.

Resources: file descriptors, threads, child processes, temporary folders, tasks of a closed event loop. Objects in
reference cycles count too: no collection of the older generations runs by itself, and everything that a test made is
collected in its teardown. A warning that a finalizer raises is therefore always raised in the test that is to blame.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
import time
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable

from tests.support.held import (
    DESCRIPTORS,
    NOTHING,
    Held,
    State,
    exact,
    held,
    lasting,
    of_multiprocessing,
    record_folders,
)

THRESHOLDS = (50_000, 1_000_000, 1_000_000)
"""Of the collector. The youngest generation is collected during long tests; no object gets into the oldest one."""
PATIENCE = 10.0
"""Seconds for a thread or process that was told to end. Only a test that leaks waits so long."""
POLL = 0.005


class Leaks:
    """A plugin for pytest."""

    def __init__(self) -> None:
        self._raw = self._before = NOTHING
        self._stranded: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Tests and their modules live until the end: the collector need never look at them."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        thresholds = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        self._look()
        try:
            return (yield)
        finally:
            gc.set_threshold(*thresholds)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with lasting():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._check(item, nextitem)

    def _look(self) -> None:
        self._raw = held()
        self._before = exact(self._raw)
        State.lasting = State.lasting.still(self._before)

    def _new(self) -> Held:
        return exact(held()).without(self._before).without(State.lasting).without(of_multiprocessing())

    def _check(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        _forget(item)
        folders, tasks = _left(State.folders, item), [repr(task) for task in _stranded() if task not in self._stranded]
        State.folders.clear()
        self._stranded.update(_stranded() if tasks else ())
        differs = held() != self._raw
        left = _describe(self._new()) if differs else {}
        if differs or folders or nextitem is None or nextitem.path != item.path:
            # What the tests of a module share is dropped with the last of them. What stays now stays for long.
            gc.collect()
            gc.freeze()
        else:
            gc.collect(1)
        if left:
            left = self._wait(left)
        if differs:
            self._look()
        try:
            collect_unraisable(item.config)
        finally:
            if left or folders or tasks:
                pytest.fail("left behind by this test: " + "; ".join([*left.values(), *folders, *tasks]), pytrace=False)

    def _wait(self, left: dict[object, str]) -> dict[object, str]:
        """What ends by itself, as a thread or process does that was told to, is no leak."""
        deadline = time.monotonic() + PATIENCE
        while any(one in left for kind in self._new() for one in kind):
            if time.monotonic() > deadline:
                return left
            time.sleep(POLL)  # noqa: TID251 - threads and processes need real time to end
        return {}


def _forget(item: pytest.Item) -> None:
    """References that pytest would drop only after the teardown."""
    getattr(item, "funcargs", {}).clear()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def _left(folders: set[str], item: pytest.Item) -> list[str]:
    """Those of pytest itself it removes later."""
    if not folders:
        return []
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    own = str(factory.getbasetemp())
    return [f"temporary folder {each}" for each in sorted(folders) if not each.startswith(own) and Path(each).exists()]


def _stranded() -> list[asyncio.Task[Any]]:
    """Tasks that wait in a loop that is closed. asyncio would tell of them when they are collected."""
    tasks: Any = vars(asyncio.tasks).get("_scheduled_tasks", vars(asyncio.tasks).get("_all_tasks", ()))
    return [
        task
        for task in tuple(tasks)
        if not task.done() and task.get_loop().is_closed() and getattr(task, "_log_destroy_pending", True)
    ]


def _describe(left: Held) -> dict[object, str]:
    found: dict[object, str] = {}
    for descriptor in left.descriptors:
        found[descriptor] = f"descriptor {descriptor} ({_target(descriptor)})"
    for thread in left.threads:
        found[thread] = f"thread {thread.name!r}"
    for pid in left.children:
        found[pid] = f"process {pid} ({_command(pid)})"
    return found


def _target(descriptor: str) -> str:
    try:
        target = os.readlink(f"{DESCRIPTORS}/{descriptor}")  # noqa: PTH115 - not a path
    except OSError:
        return "closed meanwhile"
    if target.startswith("socket:"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as one:
            peer = ""
            with contextlib.suppress(OSError):
                peer = f" to {one.getpeername()}"
            return f"socket {one.getsockname()}{peer}"
    return target


def _command(pid: int) -> str:
    """One that is about to become another program has no command line for a moment, and one that has ended has none."""
    process = Path(f"/proc/{pid}")
    try:
        while not (words := (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()):
            if (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX":
                return "ended, and nobody waited for it"
    except OSError:
        return "ended meanwhile"
    return words.decode(errors="replace")[:200]


def pytest_configure(config: pytest.Config) -> None:
    record_folders()
    config.pluginmanager.register(Leaks(), "redrive-leaks")
