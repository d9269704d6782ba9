"""How much of a queue may be leased now, on SQLite: what runs, how fast, and what its gate lets through."""

from __future__ import annotations

from typing import NamedTuple

from redrive.core import meters
from redrive.core.item import Instant
from redrive.core.verbs import Gate, GateWrite, QueueSettings
from redrive.errors import Conflict
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "limits")
_GATES = load("sqlite", "gates")

NO_LIMIT = 1 << 62
"""More than anybody asks for."""
CREDIT = 1_000
"""One retry, in the thousandths that a gate's credit is counted in."""
MICROS = 1_000
"""Microseconds, in which meters count, in a millisecond."""


class Room(NamedTuple):
    limit: int
    retries: int = NO_LIMIT


def room(tx: Tx, queue: str, settings: QueueSettings, want: int, running: int) -> Room:
    """`running`: as the queue's row says; what this write leased or ended comes on top."""
    micros, limit, retries = tx.now * MICROS, want, NO_LIMIT
    if settings.max_running is not None:
        limit = min(limit, settings.max_running - running - tx.counted(queue, "leased"))
    if settings.rate is not None:
        limit = min(limit, meters.room(settings.rate.interval, settings.rate.most, _rate_at(tx, queue), micros))
    gate = gate_of(tx, settings.gate)
    if gate is not None and gate.interval is not None:
        limit = min(limit, meters.room(gate.interval, gate.burst, gate.next_at, micros))
    elif gate is not None and gate.share is not None:
        retries = gate.credit // CREDIT + meters.room(gate.floor, 1, gate.floor_at, micros)
    return Room(max(0, limit), retries)


def spend(tx: Tx, queue: str, settings: QueueSettings, firsts: int, retries: int) -> None:
    """So many were given."""
    given, micros = firsts + retries, tx.now * MICROS
    if not given:
        return
    if settings.rate is not None:
        rate_at = meters.spent(settings.rate.interval, _rate_at(tx, queue), micros, given)
        tx.execute(_SQL["spend_rate"], (rate_at, queue))
    gate = gate_of(tx, settings.gate)
    if gate is None:
        return
    if gate.interval is not None:
        next_at = meters.spent(gate.interval, gate.next_at, micros, given)
        tx.execute(_SQL["spend_gate"], (next_at, gate.credit, gate.floor_at, gate.name))
    elif gate.share is not None:
        paid = min(retries, gate.credit // CREDIT)
        credit = min(gate.cap, gate.credit - CREDIT * paid + firsts * gate.share)
        floor_at = meters.spent(gate.floor, gate.floor_at, micros, retries - paid)
        tx.execute(_SQL["spend_gate"], (gate.next_at, credit, floor_at, gate.name))


def _rate_at(tx: Tx, queue: str) -> int:
    return int(tx.execute(_SQL["rate"], (queue,)).fetchone()[0])


class Firsts(NamedTuple):
    """The earliest due times among what is ready: first attempts, and what was tried before."""

    plain: Instant | None
    retry: Instant | None


def next_change(tx: Tx, queue: str, settings: QueueSettings, running: int, firsts: Firsts) -> Instant | None:
    """When something is due, past or to come, and may be given; None: not before a wake."""
    if settings.max_running is not None and running >= settings.max_running:
        return None
    gate = gate_of(tx, settings.gate)
    plain, retry = firsts
    if retry is not None and gate is not None and gate.interval is None and gate.share is not None:
        retry = retry if gate.credit >= CREDIT else max(retry, _millis(meters.opens_at(gate.floor, 1, gate.floor_at)))
    first = min([when for when in (plain, retry) if when is not None], default=None)
    if first is None:
        return None
    opens = [first]
    if settings.rate is not None:
        opens.append(_millis(meters.opens_at(settings.rate.interval, settings.rate.most, _rate_at(tx, queue))))
    if gate is not None and gate.interval is not None:
        opens.append(_millis(meters.opens_at(gate.interval, gate.burst, gate.next_at)))
    return max(opens)


def _millis(micros: int) -> Instant:
    """Rounded up: a waiter that comes back too early would find it shut."""
    return -(-micros // MICROS)


# --- gates ---


def gate_of(tx: Tx, name: str) -> Gate | None:
    """None also for the name that means no gate."""
    row = tx.execute(_SQL["gate"], (name,)).fetchone() if name else None
    return None if row is None else Gate(*row)


def gates(tx: Tx) -> tuple[Gate, ...]:
    return tuple([Gate(*row) for row in tx.execute(_GATES["all"])])


def set_gate(tx: Tx, write: GateWrite) -> Gate:
    """What was spent so far goes on, unless the gate is shut."""
    before = gate_of(tx, write.name)
    version = 0 if before is None else before.version
    if version != write.expect:
        raise Conflict(
            f"gate {write.name!r} is at version {version}, not {write.expect}",
            hint="read it again and repeat the change on what is there now",
        )
    base = Gate(write.name, 0) if before is None else before
    next_at = base.next_at
    if write.shut and write.interval is not None:
        next_at = tx.now * MICROS + write.burst * write.interval
    wanted = (write.interval, write.burst, write.share, write.cap, write.floor)
    gate = Gate(write.name, version + 1, *wanted, next_at, base.credit, base.floor_at, write.body)
    spent = (gate.next_at, gate.credit, gate.floor_at)
    tx.execute(_GATES["keep"], (gate.name, gate.version, *wanted, *spent, gate.body))
    return gate
