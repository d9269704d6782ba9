"""Migrations: numbered SQL files per engine, each applied once. A released file is never changed (ADR 35).

A database with a higher number than ours was made by a newer redrive and is refused. So is one to which a file was
applied with other contents than ours: its tables may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from redrive.errors import StoreCorrupt, StoreTooNew


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> list[str]:
        """One by one: sqlite3's executescript would commit the transaction the migration must run in."""
        import sqlite3  # the other engines need not have it

        found: list[str] = []
        text = ""
        for line in self.text.splitlines():
            if not text and (not line.strip() or line.lstrip().startswith("--")):
                continue
            text += line + "\n"
            if sqlite3.complete_statement(text):
                found.append(text)
                text = ""
        return found


@cache
def known(engine: str) -> tuple[Migration, ...]:
    """The migrations this release brings, in order."""
    folder = resources.files(__package__).joinpath("sql", engine, "migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(Migration(int(file.name[:4]), file.name, file.read_text(encoding="utf-8")) for file in files)


def pending(engine: str, applied: Mapping[int, str], where: str) -> tuple[Migration, ...]:
    """Which to apply to a database that has `applied` (number and checksum)."""
    ours = {migration.number: migration for migration in known(engine)}
    newest = max(ours)
    if applied and max(applied) > newest:
        raise StoreTooNew(
            f"{where} has schema {max(applied)}, and this redrive knows schemas up to {newest}",
            hint="upgrade redrive in this process, or restore a backup made before the upgrade",
        )
    for number, checksum in applied.items():
        if number not in ours or ours[number].checksum != checksum:
            raise StoreCorrupt(
                f"{where}: migration {number} was applied with other contents than this redrive has",
                hint="the file was changed by something else or made by an unreleased redrive; restore a backup",
            )
    return tuple(migration for number, migration in ours.items() if number not in applied)
