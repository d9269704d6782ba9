"""Engines as the bench has them, but in memory: what is tested here is what they do, not how fast."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import engines
from bench.engines.base import Engine
from tests.support.servers import run


@pytest.fixture(scope="module", params=[pytest.param(name, id=name) for name in engines.NAMES])
def running(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One server for a module's tests. Its folder is open to a server that may not be root."""
    folder: Path = run.current().room("bench")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield stack.enter_context(engines.started(request.param, folder))


@pytest.fixture
def engine(running: Engine) -> Iterator[Engine]:
    """Without a store in it, before and after."""
    yield running
    for store in running.left():
        running.drop(store)
