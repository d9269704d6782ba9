"""The embedded default engine: one SQLite file, several processes, nothing to install."""

from redrive.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
