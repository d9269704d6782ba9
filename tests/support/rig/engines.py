"""What the rig has to know about one engine or another. All else it asks by the verbs that every store has."""

from __future__ import annotations

import sqlite3
from urllib.parse import unquote, urlsplit

KINDS = {"memory": "memory", "sqlite": "sqlite", "postgresql": "postgres", "redis": "redis"}


def kind_of(url: str) -> str:
    return KINDS[urlsplit(url).scheme]


def writable(url: str) -> bool:
    """Whether others can write now. SQLite has one lock: whoever is stopped with it stops everybody.

    The others take what they need on the server, within one request, which goes on there while its sender stands still.
    """
    if kind_of(url) != "sqlite":
        return True
    path = unquote(urlsplit(url).path).removeprefix("/")
    connection = sqlite3.connect(path, timeout=0.2, isolation_level=None)
    try:
        connection.execute("begin immediate")
        connection.execute("rollback")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
