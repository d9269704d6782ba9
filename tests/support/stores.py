"""The one list of stores, and a fresh one of each kind for a test.

Drivers are imported late: a run that needs no server does not wait for them.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STORES = ("memory", "sqlite", "postgres", "redis")
SERVERS = frozenset({"postgres", "redis"})
EACH = tuple(pytest.param(kind, marks=pytest.mark.slow) if kind in SERVERS else kind for kind in STORES)
"""For parametrised tests. The quick run does without servers."""

StoreUrl = Callable[[str], str]


@contextlib.contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a store that nobody has used yet, for as long as the test takes. `folder` is for its files."""
    match kind:
        case "memory":
            yield "memory:"
        case "sqlite":
            from tests.support.templates import prepared

            path = prepared(Path(tempfile.mkdtemp(prefix="store-", dir=folder)) / "redrive.db")
            yield f"sqlite:///{path}"
        case "postgres":
            from tests.support.servers import schemas

            with schemas.schemas().fresh() as url:
                yield url
        case "redis":
            import redrive.stores.redis  # noqa: F401 - here, since it reads files, and a test's loop may not
            from tests.support.servers import namespaces

            with namespaces.fresh() as url:
                yield url
        case _:
            raise ValueError(f"{kind!r} is none of {STORES}")


@pytest.fixture
def same_url(store_url: StoreUrl) -> StoreUrl:
    """Call it with a kind: the one store of that kind that this test has, for all who ask."""
    return functools.cache(store_url)


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[StoreUrl]:
    """Call it with a kind: each call gives a store of its own, and all end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda kind: stack.enter_context(fresh_store(kind, tmp_path))
