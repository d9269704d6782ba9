"""Fixtures for pytest, found by its name `redrive` where redrive is installed.

All are plain fixtures, so they need no plugin for async tests and work beside every one. The kit is imported when a
test asks for it: pytest loads this module in every project where redrive is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from redrive import Redrive, blocking
    from redrive.testing import FakeClock

    A = TypeVar("A", Redrive, blocking.Redrive)


def pytest_configure(config: pytest.Config) -> None:
    """What the conformance suite marks its tests with, for whoever runs it on an engine of their own."""
    config.addinivalue_line("markers", "slow: takes more than a second or starts processes")
    config.addinivalue_line("markers", "prove: a long proof")


@pytest.fixture
def redrive_clock() -> FakeClock:
    """The clock of the other fixtures."""
    from redrive.testing import FakeClock

    return FakeClock()


@pytest.fixture
def redrive_app(redrive_clock: FakeClock) -> Iterator[Redrive]:
    """An app for this test alone, open on a store in memory; the test brings the handlers."""
    from redrive import Redrive
    from redrive.testing import sandbox

    app = Redrive("memory:", clock=redrive_clock)
    with sandbox(app, clock=redrive_clock):
        yield app


@pytest.fixture
def redrive_blocking_app(redrive_clock: FakeClock) -> Iterator[blocking.Redrive]:
    """The same without a loop."""
    from redrive import blocking
    from redrive.testing import sandbox

    app = blocking.Redrive("memory:", clock=redrive_clock)
    with sandbox(app, clock=redrive_clock):
        yield app


@pytest.fixture
def redrive_sandbox(redrive_clock: FakeClock) -> Iterator[Callable[[A], A]]:
    """Call it with an app of your program, of either colour: it is in a `sandbox` until the test ends."""
    from redrive.testing import sandbox

    with ExitStack() as stack:

        def enter(app: A) -> A:
            stack.enter_context(sandbox(app, clock=redrive_clock))
            return app

        yield enter
