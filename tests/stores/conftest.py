from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.stores.sqlite import SqliteStore
from tests.stores.sqlite_kit import Open


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
