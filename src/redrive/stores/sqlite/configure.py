"""Settings of queues and routes on SQLite."""

from __future__ import annotations

from msgspec import UNSET

from redrive.core import codec
from redrive.core.families import OWN_GATE, family_of, is_family
from redrive.core.verbs import Gate, GateWrite, QueueChange, QueueSettings, changed
from redrive.stores.checks import check_capacity
from redrive.stores.sqlite import families, limits, slots
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "configure")
_GATES = load("sqlite", "gates")


def configure(tx: Tx, queue: str, change: QueueChange) -> QueueSettings:
    """The settings as they are now."""
    whole = is_family(queue)
    if whole:
        families.declare(tx, queue)
    else:
        tx.declare(queue)
    kept, fill = tx.execute(_SQL["settings"], (queue,)).fetchone()
    if change.capacity is not UNSET and change.capacity is not None:
        check_capacity(queue, change.capacity, fill)
    before = QueueSettings() if kept is None else codec.decode(kept, QueueSettings)
    after = changed(before, change, member=bool(family_of(queue)))
    _adopt(tx, queue, before, after)
    if change.paused is not None:
        by, reason = (change.by, change.reason) if change.paused else ("", "")
        tx.execute(_SQL["pause"], (change.paused, by, reason, queue))
    if whole:
        families.lower_all(tx, queue)
    tx.woken.add(queue)
    return after


def _adopt(tx: Tx, queue: str, before: QueueSettings, after: QueueSettings) -> None:
    if after == before:
        return
    # A queue that has none again costs its leases nothing again.
    tx.execute(_SQL["keep"], (None if after == QueueSettings() else codec.encode(after), queue))
    if after.rate != before.rate:
        tx.execute(_SQL["full_rate"], (queue,))
    if after.max_per_key != before.max_per_key:
        if is_family(queue):
            families.free_asides(tx, queue)
        else:
            slots.free_all(tx, queue)


def settings(tx: Tx, queue: str) -> QueueSettings:
    row = tx.execute(_SQL["settings"], (queue,)).fetchone()
    return families.settings_of(tx, queue, None if row is None else row[0]) or QueueSettings()


def configure_route(tx: Tx, route: str, capacity: int | None) -> None:
    if capacity is not None:
        row = tx.execute(_SQL["route"], (route,)).fetchone()
        check_capacity(route, capacity, 0 if row is None else row[0])
    tx.execute(_SQL["keep_route"], (route, capacity))
    tx.execute(_SQL["forget_route"], (route,))


def set_gate(tx: Tx, write: GateWrite) -> Gate:
    """Wakes the queues behind it; a family may give it to all of its members, or to the one of its name."""
    gate = limits.set_gate(tx, write)
    behind = [queue for (queue,) in tx.execute(_GATES["behind"], (write.name,))]
    for queue in behind:
        if is_family(queue):
            families.lower_all(tx, queue)
    family = tx.family(family_of(write.name))
    if family is not None and family.settings is not None and family.settings.gate == OWN_GATE:
        behind.append(write.name)
    tx.woken.update(behind)
    return gate
