"""When something of a queue may be leased, on SQLite: what is due by kind and level, and when limits let it go."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.item import Instant
from redrive.core.lanes import Rank, is_retry
from redrive.core.verbs import QueueSettings
from redrive.stores.sqlite import limits
from redrive.stores.sqlite.limits import Firsts
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_LEASE = load("sqlite", "lease")
_TALLY = load("sqlite", "tally")


def ranks(tx: Tx, queue: str, kinds: tuple[str, ...] | None) -> list[Rank]:
    """The kinds and levels among the ready of a queue; with `kinds` only of these."""
    if kinds is None:
        return tx.execute(_LEASE["levels"], (queue,)).fetchall()
    return tx.execute(_LEASE["levels_of"], (queue, codec.encode(kinds).decode())).fetchall()


def first_due(tx: Tx, queue: str, rank: Rank) -> Instant | None:
    when: Instant | None = tx.execute(_TALLY["oldest_due"], (queue, *rank)).fetchone()[0]
    return when


def firsts_of(tx: Tx, queue: str, of_kinds: tuple[str, ...] | None = None) -> Firsts:
    times = [(is_retry(rank[1]), first_due(tx, queue, rank)) for rank in ranks(tx, queue, of_kinds)]
    plain, retry = [
        min([when for was_tried, when in times if when is not None and was_tried == tried], default=None)
        for tried in (False, True)
    ]
    return Firsts(plain, retry)


def earliest(firsts: Firsts) -> Instant | None:
    return min([when for when in firsts if when is not None], default=None)


def opens_at(
    tx: Tx, queue: str, settings: QueueSettings | None, running: int, of_kinds: tuple[str, ...] | None = None
) -> Instant | None:
    """The earliest time, past or to come, at which something of an unpaused queue is due and may be given."""
    firsts = firsts_of(tx, queue, of_kinds)
    return earliest(firsts) if settings is None else limits.next_change(tx, queue, settings, running, firsts)
