"""A release that has one migration more than the files, to test how a database gets from one schema to the next."""

from __future__ import annotations

import pytest

from redrive.stores import migrate
from redrive.stores.migrate import Migration

NAME = "0002_more.sql"
TEXTS = {
    "sqlite": "create table more (seq integer primary key);\ninsert into more select seq from item;\n",
    "postgres": "create table {schema}.more (seq bigint);\ninsert into {schema}.more select seq from {schema}.item;\n",
}
"""A new table, filled from what is there."""


def add_migration(monkeypatch: pytest.MonkeyPatch, engine: str, text: str = "", name: str = NAME) -> Migration:
    """The one after the newest: every database that was made before lacks it. May be called again for the next."""
    before = migrate.known
    added = Migration(before(engine)[-1].number + 1, name, text or TEXTS[engine])
    monkeypatch.setattr(migrate, "known", lambda asked: (*before(asked), added) if asked == engine else before(asked))
    return added
