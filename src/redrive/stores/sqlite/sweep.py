"""`sweep` on SQLite: one bite of retention, in the order of enqueue."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import Millis
from redrive.core.select import Ids
from redrive.core.states import Disposition
from redrive.core.verbs import QueueSettings, Swept
from redrive.stores.sqlite import amend, families, keys
from redrive.stores.sqlite.amend import Place, place_of
from redrive.stores.sqlite.tied import numbers
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "sweep")
_PRUNE = load("sqlite", "prune")
_DEFAULT = QueueSettings()


def sweep(tx: Tx, limit: int, by: Act, cursor: int) -> Swept:
    keys.forget(tx)
    tx.execute(_SQL["forget_slots"])
    queues = tx.execute(_SQL["settings"]).fetchall()
    kept = {queue: _DEFAULT if said is None else codec.decode(said, QueueSettings) for queue, said, _ in queues}
    everything = any(one.keep is not None or one.keep_results is not None for one in kept.values())
    if not everything and not any(trash for _, _, trash in queues):
        return Swept()
    rows = tx.execute(_SQL["next" if everything else "next_letters"], (cursor, limit)).fetchall()
    over: list[Place] = []
    stale: list[int] = []
    for *facts, ended_at, has_result in rows:
        place = place_of(tuple(facts))
        settings = families.settings_or(tx, place.queue, kept.get(place.queue))
        if settings is None or ended_at is None:
            continue
        keep = _kept(place, settings)
        if keep is not None and ended_at + keep <= tx.now:
            over.append(place)
        elif has_result and settings.keep_results is not None and ended_at + settings.keep_results <= tx.now:
            stale.append(place.seq)
    if stale:
        tx.execute(_PRUNE["results"], (numbers(stale),))
    amend.remove(tx, over, Ids(tuple([place.id for place in over])), by)
    return Swept(len(over), len(stale), rows[-1][0] if len(rows) == limit else None)


def _kept(place: Place, settings: QueueSettings) -> Millis | None:
    """For how long after its end; None is for ever."""
    if place.disposition is None:
        return settings.keep
    return settings.keep_trash if place.disposition is Disposition.TRASH else None
