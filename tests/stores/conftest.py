from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.stores.sqlite import SqliteStore
from tests.stores.sqlite_kit import Open
from tests.support.folders import quick_folder
from tests.support.quick import without_slow

SERVERS = ("test_postgres", "test_redis")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (collection_path.stem.startswith(SERVERS) and without_slow(config)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick run does without servers."""
    for item in items:
        if item.path.stem.startswith(SERVERS):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """For what has to be right, and not to survive: hundreds of databases need not wait for a disk."""
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "redrive.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Open]:
    handles: list[SqliteStore] = []

    async def opened(where: Path = path, **options: Any) -> SqliteStore:
        handles.append(SqliteStore(where, **options))
        return await handles[-1].open()

    yield opened
    for handle in handles:
        await handle.close()
