"""What holds for every test: nothing of redrive may block the event loop, and a failure can be repeated."""

import importlib
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings

import redrive.doors  # noqa: F401 - it looks for doors on the disk, which must not happen in a test's event loop
from redrive.stores.sqlite import binding, ground
from tests.support import closing_report, leaks
from tests.support.folders import prefer_memory
from tests.support.places import leave_all
from tests.support.quick import (
    QUICK,
    choose_examples,
    know_handlers,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
)
from tests.support.servers.run import announce
from tests.support.stores import same_url, store_url
from tests.support.warm_python import warm_python

__all__ = [
    "pytest_generate_tests",
    "pytest_pycollect_makeitem",
    "same_url",
    "store_url",
    "warm_python",
]

# In the first process of a run, before xdist starts its workers: they share the servers.
announce()
prefer_memory()
know_handlers()

# No deadline: a busy machine is not a failing example. In CI the same examples every time, so a red run is a change.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.register_profile(QUICK, settings.get_profile("default"), max_examples=25)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    leaks.pytest_configure(config)
    closing_report.pytest_configure(config)
    choose_examples(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The workers of a whole run share the compiling of the tests, which each of them would else do for itself."""
    config = session.config
    if (worker := getattr(config, "workerinput", None)) is None or config.args != config.getini("testpaths"):
        return
    files = sorted(config.rootpath.glob("tests/**/test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception):  # it is told when the file is collected
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def plain_ground() -> Iterator[frozenset[str]]:
    """Once for all, since many a test takes less time than a fixture. Gives the kinds of memory that it hides.

    Tests look into databases through Python's own library, and a file takes only one library in a process. What is
    special to the other one asks for it by name; processes that tests start choose for themselves.
    On many machines the folders of tests are in memory. What survives what is then told as if they were not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "preferred", lambda: binding.STDLIB)
        in_memory = ground.IN_MEMORY
        patch.setattr(ground, "IN_MEMORY", frozenset())
        yield in_memory


@pytest.fixture(scope="session")
def watch() -> Iterator[BlockBuster]:
    """Once for all: to put it in place and take it away takes longer than many a test."""
    with blockbuster_ctx("redrive") as watching:
        yield watching


@pytest.fixture(autouse=True)
def blockbuster(watch: BlockBuster) -> Iterator[BlockBuster]:
    """Fail a test in which redrive blocks the loop; the test's own code may. Whoever deactivates it does so for one."""
    yield watch
    watch.activate()


@pytest.fixture(autouse=True)
def _no_open_mailboxes() -> Iterator[None]:
    yield
    leave_all()
