"""How much of a queue may be leased now: what runs, how fast, and what its gate lets through."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from redrive.core import meters
from redrive.core.item import Instant
from redrive.core.verbs import Gate, GateWrite
from redrive.errors import Conflict
from redrive.stores.memory._lane import Kinds, Lane

NO_LIMIT = 1 << 62
"""More than anybody asks for."""
CREDIT = 1_000
"""One retry, in the thousandths that a gate's credit is counted in."""
MICROS = 1_000
"""Microseconds, in which meters count, in a millisecond."""


class Room(NamedTuple):
    limit: int
    retries: int


class Limits:
    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}

    def room(self, lane: Lane, want: int, now: Instant) -> Room:
        want = self.whole(lane.family, want)
        if lane.paused or want <= 0:
            return Room(0, 0)
        settings, micros = lane.settings, now * MICROS
        limit, retries = want, NO_LIMIT
        if settings.max_running is not None:
            limit = min(limit, settings.max_running - lane.running)
        if settings.rate is not None:
            limit = min(limit, meters.room(settings.rate.interval, settings.rate.most, lane.rate_at, micros))
        gate = self.gates.get(settings.gate)
        if gate is not None and gate.interval is not None:
            limit = min(limit, meters.room(gate.interval, gate.burst, gate.next_at, micros))
        elif gate is not None and gate.share is not None:
            retries = gate.credit // CREDIT + meters.room(gate.floor, 1, gate.floor_at, micros)
        return Room(max(0, limit), retries)

    @staticmethod
    def whole(family: Lane | None, want: int) -> int:
        """How much of it all members of a family together have room for."""
        if family is None:
            return want
        most = family.own.max_running
        return 0 if family.paused else want if most is None else min(want, most - family.running)

    def shares_budget(self, lane: Lane) -> bool:
        """Its retries wait for a budget that leases of other queues fill."""
        gate = self.gates.get(lane.settings.gate)
        return gate is not None and gate.name != lane.name and gate.interval is None and gate.share is not None

    def spend(self, lane: Lane, firsts: int, retries: int, now: Instant) -> None:
        """So many were given."""
        given, settings, micros = firsts + retries, lane.settings, now * MICROS
        if not given:
            return
        if settings.rate is not None:
            lane.rate_at = meters.spent(settings.rate.interval, lane.rate_at, micros, given)
        gate = self.gates.get(settings.gate)
        if gate is None:
            return
        if gate.interval is not None:
            next_at = meters.spent(gate.interval, gate.next_at, micros, given)
            self.gates[gate.name] = structs.replace(gate, next_at=next_at)
        elif gate.share is not None:
            paid = min(retries, gate.credit // CREDIT)
            credit = min(gate.cap, gate.credit - CREDIT * paid + firsts * gate.share)
            floor_at = meters.spent(gate.floor, gate.floor_at, micros, retries - paid)
            self.gates[gate.name] = structs.replace(gate, credit=credit, floor_at=floor_at)

    def next_change(self, lane: Lane, kinds: Kinds = None) -> Instant | None:
        """When to look again: when something is due, past or to come, and may be given; None: not before a wake."""
        settings = lane.settings
        if lane.paused or (settings.max_running is not None and lane.running >= settings.max_running):
            return None
        gate = self.gates.get(settings.gate)
        if gate is not None and gate.interval is None and gate.share is not None:
            times = self._within_budget(lane, gate, kinds)
        else:
            first = lane.first_ready(kinds=kinds)
            times = [] if first is None else [first.when]
        if not times:
            return None
        opens = [min(times)]
        if settings.rate is not None:
            opens.append(_millis(meters.opens_at(settings.rate.interval, settings.rate.most, lane.rate_at)))
        if gate is not None and gate.interval is not None:
            opens.append(_millis(meters.opens_at(gate.interval, gate.burst, gate.next_at)))
        return max(opens)

    @staticmethod
    def _within_budget(lane: Lane, gate: Gate, kinds: Kinds) -> list[Instant]:
        first, retry = lane.first_ready(retry=False, kinds=kinds), lane.first_ready(retry=True, kinds=kinds)
        times = [] if first is None else [first.when]
        if retry is not None and gate.credit >= CREDIT:
            times.append(retry.when)
        elif retry is not None:
            times.append(max(retry.when, _millis(meters.opens_at(gate.floor, 1, gate.floor_at))))
        return times

    def set_gate(self, write: GateWrite, now: Instant) -> Gate:
        """What was spent so far goes on, unless the gate is shut."""
        before = self.gates.get(write.name)
        version = 0 if before is None else before.version
        if version != write.expect:
            raise Conflict(
                f"gate {write.name!r} is at version {version}, not {write.expect}",
                hint="read it again and repeat the change on what is there now",
            )
        base = Gate(write.name, 0) if before is None else before
        next_at = base.next_at
        if write.shut and write.interval is not None:
            next_at = now * MICROS + write.burst * write.interval
        gate = structs.replace(
            base,
            version=version + 1,
            interval=write.interval,
            burst=write.burst,
            share=write.share,
            cap=write.cap,
            floor=write.floor,
            body=write.body,
            next_at=next_at,
        )
        self.gates[write.name] = gate
        return gate


def _millis(micros: int) -> Instant:
    """Rounded up: a waiter that comes back too early would find it shut."""
    return -(-micros // MICROS)
