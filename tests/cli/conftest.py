from pathlib import Path

import pytest

from tests.support.cli import on_store
from tests.support.families import pytest_generate_tests
from tests.support.quick import without_slow
from tests.support.signals import signals

__all__ = ["on_store", "pytest_generate_tests", "signals"]

SERVERS = frozenset({"test_db_postgres", "test_db_redis", "test_servers"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (collection_path.stem in SERVERS and without_slow(config)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick run does without servers."""
    for item in items:
        if item.path.stem in SERVERS:
            item.add_marker(pytest.mark.slow)
