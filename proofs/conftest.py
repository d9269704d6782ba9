import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proofs.summary import pytest_configure
from tests.support.folders import quick_folder
from tests.support.lab import lab, memory_lab
from tests.support.stores import fresh_store

__all__ = ["folder", "lab", "memory_lab", "on_file", "pytest_configure", "shared"]

SHARED = ("sqlite", "postgres", "redis")
"""Stores that several processes can share."""
HANGS = 240
"""Seconds after which a proof hangs, unless it says otherwise: what it waits for has limits of its own, and must be
given up with a word on what did not happen."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    limit = max(HANGS, config.getoption("timeout", None) or 0)
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit))


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """A run that was started in the background ignores Ctrl-C, and its children would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _size(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """For the summary: a module says by SIZE how big its proof is."""
    size = getattr(request.module, "SIZE", None)
    if isinstance(size, str):
        record_property("size", size)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is room."""
    with quick_folder(tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite"])
def on_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh SQLite store, for what does not depend on the store."""
    with quick_folder(tmp_path) as folder, fresh_store(request.param, folder) as url:
        yield url


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh store for several processes."""
    with quick_folder(tmp_path) as folder, fresh_store(request.param, folder) as url:
        yield url
