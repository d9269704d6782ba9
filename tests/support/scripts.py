"""Programs that use the blocking API in a process of their own: they fork, are signalled, or simply end."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cli import WorkerProcess, environment
from tests.support.stores import StoreUrl

PRELUDE = """
import os, signal, sys, threading, warnings
from pathlib import Path
from redrive.blocking import Policy, Redrive, constant, never
from redrive.errors import AppClosed, RedriveError

url = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
os.register_at_fork(after_in_child=lambda: signal.alarm(120))  # a child that hangs ends
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def say(*words):
    print(*words, flush=True)

def loops():
    return sum(thread.name == "redrive-loop" for thread in threading.enumerate())
"""


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


Run = Callable[..., Script]


@pytest.fixture
def run(tmp_path: Path, same_url: StoreUrl) -> Iterator[Run]:
    """Starts a script in the test's folder, and ends it with the test."""
    started: list[Script] = []

    def run(text: str, store: str = "sqlite") -> Script:
        started.append(Script.run(text, url=same_url(store), cwd=tmp_path))
        return started[-1]

    yield run
    for script in started:
        script.close()
