"""Engines as the bench has them, but in memory: what is tested here is what they do, not how fast."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import engines
from bench.engines.base import Engine
from tests.support.held import lasting
from tests.support.servers import run


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], Engine]]:
    """One server of a kind for all: tests come in any order. Its folder is open to a server that may not be root."""
    with ExitStack() as stack:

        @functools.cache
        def start(name: str) -> Engine:
            with lasting():
                folder: Path = run.current().room("bench")
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                engine = stack.enter_context(engines.started(name, folder))
                engine.facts()  # its client connects
                return engine

        yield start


@pytest.fixture
def running(started: Callable[[str], Engine]) -> Engine:
    """The one that needs no server. With all of them: proofs/test_bench.py."""
    return started("sqlite")


@pytest.fixture
def engine(running: Engine) -> Iterator[Engine]:
    """Without a store in it, before and after."""
    yield running
    for store in running.left():
        running.drop(store)
