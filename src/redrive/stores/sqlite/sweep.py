"""`sweep` on SQLite: one bite of retention, in the order of enqueue."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.select import Ids
from redrive.core.verbs import Act, QueueSettings, Swept
from redrive.stores.sqlite import amend, keys
from redrive.stores.sqlite.amend import Place, place_of
from redrive.stores.sqlite.tied import numbers
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "sweep")
_PRUNE = load("sqlite", "prune")


def sweep(tx: Tx, limit: int, by: Act, cursor: int) -> Swept:
    keys.forget(tx)
    tx.execute(_SQL["forget_slots"])
    kept = {queue: codec.decode(settings, QueueSettings) for queue, settings in tx.execute(_SQL["settings"]).fetchall()}
    if all(one.keep is None and one.keep_results is None for one in kept.values()):
        return Swept()
    rows = tx.execute(_SQL["next"], (cursor, limit)).fetchall()
    over: list[Place] = []
    stale: list[int] = []
    for *facts, ended_at, has_result in rows:
        place = place_of(tuple(facts))
        settings = kept.get(place.queue)
        if settings is None or ended_at is None or place.disposition is not None:
            continue
        if settings.keep is not None and ended_at + settings.keep <= tx.now:
            over.append(place)
        elif has_result and settings.keep_results is not None and ended_at + settings.keep_results <= tx.now:
            stale.append(place.seq)
    if stale:
        tx.execute(_PRUNE["results"], (numbers(stale),))
    amend.remove(tx, over, Ids(tuple([place.id for place in over])), by)
    return Swept(len(over), len(stale), rows[-1][0] if len(rows) == limit else None)
