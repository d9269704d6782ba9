"""SQLite: a store is a file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.engines.base import Engine
from bench.seeds import sqlite as seed
from redrive.stores.sqlite.binding import choose


class Sqlite(Engine):
    name = "sqlite"

    def empty(self, store: str) -> str:
        self.drop(store)
        return f"sqlite:///{self.path(store)}"

    def copy(self, template: str, store: str) -> str:
        db = sqlite3.connect(self.path(template))
        db.execute("pragma wal_checkpoint(truncate)")
        db.close()
        url = self.empty(store)
        shutil.copyfile(self.path(template), self.path(store))
        with self.path(store).open("rb") as file:
            os.fsync(file.fileno())
        return url

    def drop(self, store: str) -> None:
        path = self.path(store)
        for suffix in ("", "-wal", "-shm", "-ballast"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    def left(self) -> set[str]:
        return {path.stem for path in self.scratch.glob("*.db")}

    def waiting(self, store: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
        return seed.waiting(self.empty(store), ready, delayed=delayed, paused=paused)

    def letters(self, store: str, count: int) -> str:
        return seed.letters(self.empty(store), count)

    @contextmanager
    def lax(self, url: str) -> Iterator[str]:
        yield f"{url}?durability=process-crash"

    def facts(self) -> dict[str, object]:
        binding = choose("auto", str(self.scratch))
        return {"sqlite": f"{binding.version} ({binding.name})"}

    def path(self, store: str) -> Path:
        return self.scratch / f"{store}.db"
