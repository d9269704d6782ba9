from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.blocking import Redrive
from tests.blocking.kit import Script
from tests.support.families import pytest_generate_tests
from tests.support.stores import EACH, StoreUrl

__all__ = ["pytest_generate_tests"]

Run = Callable[..., Script]


@pytest.fixture(params=EACH)
def app(request: pytest.FixtureRequest, store_url: StoreUrl) -> Iterator[Redrive]:
    made = Redrive(store_url(request.param), actor="tester", log=False)
    yield made
    made.close()


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
