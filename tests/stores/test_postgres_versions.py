"""A sample of the conformance suite on the oldest PostgreSQL, and in databases of other encodings and locales."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.stores.postgres_ways_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_ways_kit import Fresh, Way, by_way, on
from tests.stores.sample import *  # noqa: F403 - the tests and their fixtures
from tests.support.servers import binaries, shared
from tests.support.servers.absent import absent


def there(version: int) -> None:
    """The same tests run on the newest, so one that is missing is told by name and is no failure."""
    if version not in {each.version for each in binaries.postgres_programs()}:
        raise absent(f"PostgreSQL {version}", f"install postgresql-{version}", another_version=True)


def of_version(version: int) -> Way:
    @contextmanager
    def way() -> Iterator[Fresh]:
        there(version)
        with on(shared.postgres(version)) as fresh:
            yield fresh

    return way


def in_database(making: str, version: int | None = None) -> Way:
    """`making`: how it differs from others, in the words of `create database`."""

    @contextmanager
    def way() -> Iterator[Fresh]:
        if version is not None:
            there(version)
        server = shared.postgres(version)
        name = f"redrive_test_{secrets.token_hex(6)}"
        with closing(psycopg.connect(server.admin, autocommit=True)) as admin:
            admin.execute(f"create database {name} owner redrive template template0 {making}".encode())
            try:
                with on(shared.Shared(_other(server.url, name), _other(server.admin, name))) as fresh:
                    yield fresh
            finally:
                admin.execute(f"drop database {name} with (force)".encode())

    return way


def _other(url: str, database: str) -> str:
    return urlsplit(url)._replace(path=f"/{database}").geturl()


WAYS = {
    "15": of_version(15),
    "sql_ascii": in_database("encoding 'SQL_ASCII'"),
    # Sorts ä before z, and as no byte does. Servers built without ICU have no such locale.
    "german": in_database("locale_provider icu icu_locale 'de-DE'", 15),
}


TEXTS = frozenset(
    {
        "test_causes_lose_what_is_no_longer_open",
        "test_documents_are_written_all_or_none",
        "test_find_cursors_hold_on_another_handle",
        "test_put_takes_any_text_as_id_and_queue",
    }
)
"""Those in which an encoding or a locale can matter."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    texts = metafunc.definition.originalname in TEXTS
    by_way(metafunc, {name: way for name, way in WAYS.items() if texts or name == "15"})
