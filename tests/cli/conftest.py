import pytest

from tests.support.cli import on_store

__all__ = ["on_store"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick run does without servers."""
    for item in items:
        if item.path.stem in {"test_db_postgres", "test_db_redis", "test_servers"}:
            item.add_marker(pytest.mark.slow)
