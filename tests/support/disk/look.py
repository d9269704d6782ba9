"""Was everything kept that was promised? Asked of a database by a fresh store."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from redrive.errors import StoreError
from redrive.stores.sqlite import SqliteStore
from tests.support.rig.facts import ENDED
from tests.support.rig.survey import Survey, survey

SHOWN = 5

Faults = dict[str, list[str]]


@dataclass
class Promises:
    """`asked`: ids that may be there. `accepted`: those that must. `ended`: as what. `refused`: those that must not."""

    asked: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def so_far(self) -> Promises:
        """What holds now holds whatever comes; what was refused may be tried again."""
        return Promises(self.asked, set(self.accepted), dict(self.ended))


async def look(database: Path, promises: Promises, *, all_over: bool = False) -> Faults:
    """`all_over`: nothing may be left to do."""
    store = SqliteStore(database, network="allow", ballast="off")
    try:
        await store.open()
        found = await survey(store, promises.accepted)
    except StoreError as error:
        return {"damaged": [str(error)]}
    finally:
        await store.close()
    faults = {
        **_broken(found, promises),
        "miscounted": [f"{where}: {what}" for where, what in found.miscounts.items()],
        "damaged": damage(database),
        "unfinished": [key for key, final in found.finals.items() if all_over and final.item.state not in ENDED],
    }
    return {kind: sorted(keys)[:SHOWN] for kind, keys in faults.items() if keys}


def _broken(found: Survey, promises: Promises) -> Faults:
    states = {key: str(final.item.state) for key, final in found.finals.items()}
    return {
        "lost": [key for key in promises.accepted if key not in states and key not in found.pruned],
        "reopened": [key for key, end in promises.ended.items() if states.get(key, end) != end],
        "unexpected": [key for key in states if key not in promises.asked],
        "refused, yet there": [key for key in promises.refused if key in states],
    }


def damage(database: Path) -> list[str]:
    connection = sqlite3.connect(database)
    try:
        found = [str(line) for (line,) in connection.execute("pragma integrity_check")]
    finally:
        connection.close()
    return [] if found == ["ok"] else found
