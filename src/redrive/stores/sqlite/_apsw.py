"""The binding of `redrive[sqlite]`: apsw, which brings its own, newer SQLite. Imported only where it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from redrive.core.item import Millis
from redrive.stores.sqlite.binding import Connection


class _ApswConnection(apsw.Connection):
    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        self.execute(sql, values)
        return self.changes()

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        before = self.total_changes()
        self.executemany(sql, rows)
        return self.total_changes() - before

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        self.execute(sql, values)
        return self.last_insert_rowid()

    def changes_ever(self) -> int:
        return self.total_changes()

    def add_function(self, name: str, arguments: int, function: Callable[..., Any]) -> None:
        self.create_scalar_function(name, function, arguments, deterministic=True)

    def watch(self, stop: Callable[[], bool] | None, steps: int) -> None:
        self.set_progress_handler(stop, steps)

    def keep_plans(self, *, keep: bool) -> None:
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, int(keep))

    def copy_to(self, path: str, pages: int, between: Callable[[], None]) -> None:
        target = apsw.Connection(path)
        try:
            with target.backup("main", self, "main") as copying:
                while not copying.done:
                    copying.step(pages)
                    between()
        finally:
            target.close()


class Apsw:
    name = "apsw"
    errors = apsw.Error

    @property
    def version(self) -> str:
        return apsw.sqlite_lib_version()

    def connect(self, path: str, busy_timeout: Millis) -> Connection:
        connection = _ApswConnection(path, statementcachesize=256)
        connection.set_busy_timeout(busy_timeout)
        return connection


APSW = Apsw()
