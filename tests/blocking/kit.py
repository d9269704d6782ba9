"""What the tests of the facade share: an app on every store, threads that pass on what they raise, and scripts."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from redrive.blocking import Redrive
from redrive.blocking._process import NAME
from tests.support.cli import PATIENCE, WorkerProcess, environment

T = TypeVar("T")

PRELUDE = """
import os, signal, sys, threading, warnings
from pathlib import Path
from redrive.blocking import Policy, Redrive, constant, never
from redrive.errors import AppClosed, RedriveError

url = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
os.register_at_fork(after_in_child=lambda: signal.alarm(20))  # a child that hangs ends
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def say(*words):
    print(*words, flush=True)

def loops():
    return sum(thread.name == "redrive-loop" for thread in threading.enumerate())
"""


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def in_thread(call: Callable[[], T]) -> Future[T]:
    """In a thread of its own; the future raises what it raised, or that it takes too long."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def done(future: Future[T]) -> T:
    return future.result(PATIENCE)


@contextmanager
def working(app: Redrive, grace: str = "30s") -> Iterator[Future[None]]:
    """A worker in another thread."""
    started = threading.Event()
    unsubscribe = app.events.subscribe(lambda _: started.set())
    running = in_thread(lambda: app.run(grace=grace))
    assert started.wait(PATIENCE)
    unsubscribe()
    try:
        yield running
    finally:
        app.stop(grace=0)
        done(running)


class Script(WorkerProcess):
    """A program in a process of its own; its first argument is the store."""

    @classmethod
    def run(cls, text: str, *, url: str, cwd: Path) -> Script:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + text, url],
            cwd=cwd,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        return cls(process, queue.SimpleQueue())
