"""How the queues stand: all that `status` and `queue` know, read at one time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from redrive.app import Redrive
from redrive.cli.stuck import Stuck, stuck
from redrive.core import durations, rates
from redrive.core.item import Instant, Item, Millis
from redrive.core.redact import redact_text
from redrive.core.select import And, Match, Or, Selection
from redrive.core.verbs import TRASH_KEPT, CauseTally, QueueSettings, QueueTally, RouteTally, StoreInfo, WorkerBeat
from redrive.doors import Problem
from redrive.engine.registry import is_outbox
from redrive.office.doors import doors, problems
from redrive.office.gates import GateView
from redrive.stores.upkeep import InMemory

TOP_CAUSES = 5


class Standing(Struct, frozen=True):
    at: Instant
    info: StoreInfo
    queues: tuple[QueueTally, ...]
    routes: tuple[RouteTally, ...]
    gates: tuple[GateView, ...]
    causes: tuple[CauseTally, ...]
    workers: tuple[WorkerBeat, ...]
    stuck: tuple[Stuck, ...] = ()
    doors: Mapping[str, str] = {}
    of_doors: tuple[Problem, ...] = ()
    undelivered: Mapping[str, Item] = {}
    """The oldest item of each outbox queue."""
    scarce: str = ""
    """What is to be said of the memory of a server that has its data there."""

    def live(self) -> Counter[str]:
        """Live workers by queue."""
        return Counter(queue for beat in self.workers if beat.alive for queue in beat.facts.queues)

    def due_for(self, row: QueueTally) -> Millis | None:
        """How long the longest waiting item has been due; None when nothing is."""
        if not row.ready or row.oldest_due is None or row.oldest_due > self.at:
            return None
        return self.at - row.oldest_due

    def unattended(self, row: QueueTally) -> bool:
        """Work to do, or held by somebody who is gone, and nobody there. A paused queue is left alone on purpose."""
        waits = row.ready > 0 if is_outbox(row.queue) else self.due_for(row) is not None
        to_do = row.leased > 0 or (waits and not row.paused)
        return to_do and not self.live()[row.queue]

    def stuck_in(self, row: QueueTally) -> Stuck | None:
        """What will not go on until somebody sees to a letter."""
        return next((each for each in self.stuck if each.queue == row.queue), None)

    def reached(self, row: QueueTally) -> tuple[str, ...]:
        """The limits that keep the queue from taking or giving more now."""
        settings, found = row.settings, []
        if settings.capacity is not None and fill(row) >= settings.capacity:
            found.append("FULL")
        if settings.max_running is not None and row.leased >= settings.max_running:
            found.append("AT MAX RUNNING")
        if settings.gate and any(gate.name == settings.gate and gate.state != "closed" for gate in self.gates):
            found.append(f"GATE {settings.gate} OPEN")
        return tuple(found)

    def full_routes(self) -> tuple[RouteTally, ...]:
        return tuple(row for row in self.routes if row.capacity is not None and row.open >= row.capacity)


def fill(row: QueueTally) -> int:
    """What counts against a capacity."""
    return row.ready + row.held + row.parked + row.leased


async def read(app: Redrive) -> Standing:
    tally = await app.tally()
    gated = any(row.settings.gate for row in tally.queues)
    gates = await app.gates() if gated else ()
    causes = tuple(replace(each, text=redact_text(each.text)) for each in await app.causes(limit=TOP_CAUSES))
    workers = await app.workers()
    still = await stuck(app._store, tally.queues)  # noqa: SLF001 - whom a set of items waits for is in no filter
    shown = tuple([row for row in tally.queues if not is_outbox(row.queue) or fill(row) + row.open])
    standing = Standing(tally.at, app.info(), shown, tally.routes, gates, causes, workers, still)
    if any(standing.unattended(row) for row in standing.queues):
        return replace(standing, doors=await doors(app._store))  # noqa: SLF001 - documents have no public face
    return standing


async def read_with_memory(app: Redrive) -> Standing:
    """One question more to a server that has its data there."""
    standing, store = await read(app), app._store  # noqa: SLF001 - an app does not care where its store has the data
    outboxes = [row.queue for row in standing.queues if is_outbox(row.queue) and row.ready + row.leased]
    oldest = {queue: (await store.find(_undelivered(queue), 1, oldest=True)).items for queue in outboxes}
    undelivered = {queue: items[0] for queue, items in oldest.items() if items}
    standing = replace(standing, of_doors=await problems(store), undelivered=undelivered)
    return replace(standing, scarce=scarce(*await store.memory())) if isinstance(store, InMemory) else standing


def _undelivered(queue: str) -> Selection:
    return And((Match("queue", "=", queue), Or((Match("state", "=", "ready"), Match("state", "=", "leased")))))


def scarce(used: int, most: int) -> str:
    """Nothing while there is enough, or no bound."""
    if not 0 < most * 9 // 10 <= used:
        return ""
    return f"{used:,} of {most:,} bytes of the server's memory are used; a full server refuses what is enqueued"


def limits(settings: QueueSettings) -> dict[str, str]:
    """The settings that are not as a new queue has them, as `queue set` takes them."""
    words: dict[str, str | None] = {
        "max_running": _number(settings.max_running),
        "max_per_key": _number(settings.max_per_key),
        "rate": None if settings.rate is None else rates.format(settings.rate),
        "capacity": _number(settings.capacity),
        "order": None if settings.order == "block" else settings.order,
        "policy": settings.policy or None,
        "gate": settings.gate or None,
        "keep": _duration(settings.keep),
        "keep_results": _duration(settings.keep_results),
        "keep_trash": None if settings.keep_trash == TRASH_KEPT else _duration(settings.keep_trash),
        "retry_share": None if settings.retry_share is None else f"{settings.retry_share:g}",
    }
    return {name: word for name, word in words.items() if word is not None}


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _duration(value: Millis | None) -> str | None:
    return None if value is None else durations.format(value)
