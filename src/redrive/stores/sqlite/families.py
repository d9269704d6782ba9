"""Families of queues on SQLite: settings of members, and which of them a lease looks at."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.families import VISITS, family_of, is_family, look_again, member_settings, names_between
from redrive.core.item import Instant
from redrive.core.meters import Rate
from redrive.core.verbs import QueueSettings
from redrive.stores.sqlite import limits, opening, slots
from redrive.stores.sqlite.tx import Family, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "families")
_LEASE = load("sqlite", "lease")


def settings_of(tx: Tx, queue: str, kept: bytes | None) -> QueueSettings | None:
    """Those that hold for a queue, from what its row keeps; None: the defaults."""
    return settings_or(tx, queue, None if kept is None else codec.decode(kept, QueueSettings))


def settings_or(tx: Tx, queue: str, own: QueueSettings | None) -> QueueSettings | None:
    """The same, from its own; None for a queue that has none and inherits none."""
    family = tx.family(family_of(queue))
    if family is None or family.settings is None:
        return own
    return member_settings(queue, own or QueueSettings(), family.settings)


def inherited_rate(tx: Tx, queue: str) -> Rate | None:
    family = tx.family(family_of(queue))
    return None if family is None or family.settings is None else family.settings.rate


def declare(tx: Tx, name: str) -> Family:
    """The family, with all queues that have such a name."""
    family = tx.family(name)
    if family is None:
        tx.flush()
        between = names_between(name)
        tx.execute(_SQL["declare"], (name, *between))
        tx.execute(_SQL["lower_new"], (name, tx.now, *between))
        family = tx.family(name, anew=True) or Family(paused=False, settings=None, running=0)
    return family


def room(tx: Tx, name: str, family: Family | None, want: int) -> int:
    """How much of it all members together have room for."""
    if family is None or family.settings is None or family.settings.max_running is None:
        return 0 if family is not None and family.paused else want
    running = family.running + tx.counted_family(name, "leased")
    return 0 if family.paused else min(want, family.settings.max_running - running)


def turns(tx: Tx, name: str, want: int) -> list[str]:
    """The members that a lease looks at now."""
    family = declare(tx, name)
    tx.lower()
    if room(tx, name, family, want) <= 0:
        return []
    return [queue for (queue,) in tx.execute(_SQL["turns"], (name, tx.now, VISITS))]


def look_at_again(tx: Tx, queue: str) -> bool:
    """After a lease looked at a member: when it has something to give. True if that is now."""
    row = tx.execute(_LEASE["queue"], (queue, queue)).fetchone()
    when: Instant | None = None
    if row is not None and not row[0]:
        settings = settings_of(tx, queue, row[2])
        when = opening.opens_at(tx, queue, settings, row[3] + tx.counted(queue, "leased"))
        if when is not None and settings is not None:
            when = look_again(when, tx.now, shared_budget=_shares_budget(tx, queue, settings.gate))
    if when is None:
        tx.execute(_SQL["look_no_more"], (queue,))
    else:
        tx.execute(_SQL["look_at"], (family_of(queue), queue, max(when, tx.now)))
    return when is not None and when <= tx.now


def _shares_budget(tx: Tx, queue: str, name: str) -> bool:
    gate = None if name in ("", queue) else limits.gate_of(tx, name)
    return gate is not None and gate.interval is None and gate.share is not None


def lower_all(tx: Tx, name: str) -> None:
    """Of a family: its settings changed, or the gate before all its members."""
    tx.execute(_SQL["lower_all"], (tx.now, name, tx.now))


def free_asides(tx: Tx, name: str) -> None:
    for (queue,) in tx.execute(_SQL["asides"], names_between(name)).fetchall():
        slots.free_all(tx, queue)
        tx.woken.add(queue)


def next_look(tx: Tx, name: str, kinds: tuple[str, ...] | None) -> Instant | None:
    """Of members whose turn it is, only items of these kinds count."""
    family = tx.family(name)
    if family is None or room(tx, name, family, 1) <= 0:
        return None
    times: list[Instant | None] = []
    if kinds is not None:
        times = [next_change(tx, queue, kinds) for (queue,) in tx.execute(_SQL["due"], (name, tx.now)).fetchall()]
    times += tx.execute(_SQL["first"], (name, -1 if kinds is None else tx.now)).fetchone()
    return min([when for when in times if when is not None], default=None)


def next_change(tx: Tx, queue: str, kinds: tuple[str, ...] | None = None) -> Instant | None:
    """The earliest time, past or to come, at which something of a queue or family is due and may be given."""
    if is_family(queue):
        return next_look(tx, queue, kinds)
    row = tx.execute(_LEASE["queue"], (queue, queue)).fetchone()
    family = family_of(queue)
    if row is None or row[0] or room(tx, family, tx.family(family), 1) <= 0:
        return None
    return opening.opens_at(tx, queue, settings_of(tx, queue, row[2]), row[3], kinds)
