"""PostgreSQL behind PgBouncer in transaction mode, where each transaction gets another of the server's sessions.

Nothing may be left in a session there, so the store is told `notify=off`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import asyncpg
import psycopg
import pytest

from redrive import Redrive
from redrive.errors import ConfigError, OutcomeUnknown, StoreUnavailable
from redrive.stores.url import store_from_url
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from tests.stores.postgres_ways_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_ways_kit import Fresh, Way, by_way, on
from tests.support.servers import shared
from tests.support.servers.absent import absent
from tests.support.servers.pooler import PREPARING, Pooler, private_pooler, version
from tests.support.servers.server import Setting

LIMIT = 50


def through(**settings: Setting) -> Way:
    @contextmanager
    def way() -> Iterator[Fresh]:
        if "max_prepared_statements" in settings and version() < PREPARING:
            raise absent("PgBouncer that knows prepared statements", "install 1.21 or newer", another=True)
        with on(shared.postgres()) as fresh, private_pooler(shared.postgres().url, **settings) as pooler:

            @contextmanager
            def behind_it() -> Iterator[str]:
                with fresh() as url:
                    yield pooler.url(url, notify="off")

            yield behind_it

    return way


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    by_way(metafunc, {"transactions": through()})
