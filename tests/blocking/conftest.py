from collections.abc import Iterator

import pytest

from redrive.blocking import Redrive
from tests.support.families import pytest_generate_tests
from tests.support.scripts import run
from tests.support.stores import EACH, StoreUrl

__all__ = ["pytest_generate_tests", "run"]


@pytest.fixture(params=EACH)
def app(request: pytest.FixtureRequest, store_url: StoreUrl) -> Iterator[Redrive]:
    made = Redrive(store_url(request.param), actor="tester", log=False)
    yield made
    made.close()
