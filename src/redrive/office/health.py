"""Health findings: what an operator should look at, from the overview, the server's memory and the doors."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from msgspec import Struct

from redrive.core.durations import brief
from redrive.core.filters import render
from redrive.core.item import Instant, Millis, short_id
from redrive.core.select import And, Match, Or
from redrive.engine.registry import OUTBOX, is_outbox
from redrive.office.doors import Problem, problems
from redrive.office.overview import Overview, QueueOverview, overview
from redrive.stores.base import Store
from redrive.stores.upkeep import InMemory

__all__ = ["OLDEST", "Health", "Problem", "find_problems", "health", "scarce_memory"]

OLDEST: Millis = 15 * 60_000
STUCK: Millis = 5 * 60_000
"""An outbox item that was not delivered for so long is a finding."""


class Health(Struct, frozen=True):
    """`queues` and `workers`: how many there are, of the workers the live ones."""

    at: Instant
    problems: tuple[Problem, ...] = ()
    queues: int = 0
    workers: int = 0

    @property
    def healthy(self) -> bool:
        return not self.problems


async def health(store: Store, *, oldest: Millis = OLDEST, max_letters: int | None = None) -> Health:
    """`oldest`: how long an item may be due. `max_letters`: how many open letters are no problem; None for any."""
    view = await overview(store)
    found = [*find_problems(view, oldest)]
    found += [problem for row in view.queues if (problem := await _outbox(store, row, view.at)) is not None]
    if isinstance(store, InMemory) and (text := scarce_memory(*await store.memory())):
        found.append(Problem("memory", "", text, "raise maxmemory, or redrive queue prune"))
    found += await problems(store)
    letters = sum(row.tally.open for row in view.queues)
    if max_letters is not None and letters > max_letters:
        text = f"{letters:,} open letters exceed the limit of {max_letters:,}"
        found.append(Problem("letters", "", text, "redrive letters list --by cause"))
    return Health(view.at, tuple(found), len(view.queues), sum(beat.alive for beat in view.workers))


def find_problems(view: Overview, oldest: Millis = OLDEST) -> Iterator[Problem]:
    for row in view.queues:
        yield from _of_queue(row, oldest)
    for gate in view.open_gates:
        by = f" by {gate.by}" if gate.by else ""
        text = f"gate {gate.name} is {gate.state}{by}: {gate.why}"
        yield Problem("gate_open", gate.name, text, f"redrive gate show {quote(gate.name)}")
    for route in view.full_routes:
        text = f"route {route.route} is full: {route.open:,} of {route.capacity:,} open letters"
        yield Problem("route_full", route.route, text, _letters("route", route.route))
    for beat in view.workers:
        if not beat.alive and not beat.facts.stopped and beat.facts.running:
            text = f"worker {beat.worker} was lost with {beat.facts.running:,} in hand"
            said = f"{text}; last heard of {brief(view.at - beat.seen_at)} ago"
            yield Problem("worker_lost", beat.worker, said, "redrive worker list")
    yield from _missing_keys(view)


def _missing_keys(view: Overview) -> Iterator[Problem]:
    lacking: dict[str, list[str]] = {}
    for beat in view.workers:
        for name in beat.facts.missing_keys if beat.alive else ():
            lacking.setdefault(name, []).append(beat.worker)
    for name, workers in lacking.items():
        queue, _, key = name.partition(" ")
        who = f"worker {workers[0]}" if len(workers) == 1 else f"{len(workers):,} workers, such as {workers[0]},"
        have = "does not have" if len(workers) == 1 else "do not have"
        text = f"queue {queue}: items are encrypted with key {key!r}, which {who} {have}"
        yield Problem("missing_key", queue, text, "redrive db keys")


async def _outbox(store: Store, row: QueueOverview, now: Instant) -> Problem | None:
    """An outbox that no process serves, or whose target did not take an item for STUCK."""
    if not is_outbox(row.name) or not row.tally.ready + row.tally.leased:
        return None
    target, to_do = row.name.removeprefix(OUTBOX), f"{row.tally.ready + row.tally.leased:,} to deliver"
    if row.unattended:
        text = f"outbox {target} has {to_do}, and no live process delivers to it"
        return Problem("outbox_unserved", target, text, row.start)
    waits = Or((Match("state", "=", "ready"), Match("state", "=", "leased")))
    first = next(iter(await store.find(And((Match("queue", "=", row.name), waits)), 1, oldest=True)), None)
    if first is None or now - first.enqueued_at <= STUCK or row.tally.paused:
        return None
    text = f"outbox {target} has {to_do}, the oldest since {brief(now - first.enqueued_at)}"
    return Problem("outbox_stuck", target, text, f"redrive item explain {quote(short_id(first.id))}")


def _of_queue(row: QueueOverview, oldest: Millis) -> Iterator[Problem]:
    tally, show = row.tally, f"redrive queue show {quote(row.name)}"
    if is_outbox(row.name):
        pass  # see _outbox
    elif row.unattended:
        text = f"queue {row.name} has {tally.ready + tally.leased:,} to do and no live worker"
        yield Problem("no_worker", row.name, text, row.start)
    elif row.oldest is not None and row.oldest > oldest and not tally.paused:
        text = f"queue {row.name}: the oldest item has been due for {brief(row.oldest)}"
        yield Problem("too_old", row.name, text, show)
    if row.unserved:
        named = ", ".join([repr(kind) if kind else "none" for kind in row.unserved])
        text = f"queue {row.name}: no worker for kind {named}"
        yield Problem("no_worker_for_kind", row.name, text, "redrive worker list")
    if tally.parked:
        text = f"queue {row.name} has {tally.parked:,} parked, by an operator or behind dead heads of their order keys"
        yield Problem("parked", row.name, text, f"redrive item list --where {quote(f'queue:{row.name} hold:parked')}")
    if row.stuck is not None:
        do = f"redrive letters show {quote(short_id(row.stuck.letters[0]))}"
        yield Problem("held", row.name, f"queue {row.name}: {row.stuck}", do)
    if "FULL" in row.reached:
        text = f"queue {row.name} is at its capacity of {tally.settings.capacity:,}: enqueue refuses"
        yield Problem("queue_full", row.name, text, show)


def _letters(field: str, name: str) -> str:
    return f"redrive letters list --where {quote(render(Match(field, '=', name)))}"


def scarce_memory(used: int, most: int) -> str:
    """Empty while there is enough, or no bound."""
    if not 0 < most * 9 // 10 <= used:
        return ""
    return f"{used:,} of {most:,} bytes of the server's memory are used; a full server refuses what is enqueued"
