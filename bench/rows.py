"""The measurements. Each row takes its baseline in the same breath and gives readings; `report` takes their medians."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import features, growth, log, mailboxes, office, pages, receipts, scaling, shell, webhooks
from bench.harness import Child, cpu_seconds
from bench.lab import Lab, Reading, check, enqueue_in_chunks
from bench.load import PAYLOAD, QUEUE
from bench.raw import BATCH
from redrive import Redrive
from redrive.blocking import Redrive as Facade

LETTERS = 10_000
CALLERS = 64
SAMPLES = 120
CALLS = 400
CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Goals:
    """What differs from engine to engine."""

    peer: float
    bulk: float
    callers: float | None = None
    best_batch: float | None = 0.40


GOALS = {
    "sqlite": Goals(peer=10.0, bulk=0.50, callers=6.0, best_batch=None),
    "postgres": Goals(peer=1.5, bulk=0.40),
    "redis": Goals(peer=5.0, bulk=0.40),
}


def drain(lab: Lab) -> list[Reading]:
    count, goals = lab.drain_size(), GOALS[lab.engine.name]
    worker, own = lab.drain(), lab.own(count)
    batch = lab.best_batch()
    best = own if batch == BATCH else lab.own(count, batch)
    ours, cpu = worker["rate"], sum(worker["cpu_us_per_item"].values())
    raw = f"raw own schema, batch {BATCH}"
    return [
        Reading("drain", ours, "/s", raw, own["rate"], at_least=0.40),
        Reading("drain, CPU per item", cpu, "µs", raw, own["cpu_us_per_item"]),
        Reading(
            "drain, best batch", ours, "/s", f"raw own schema, batch {batch}", best["rate"], at_least=goals.best_batch
        ),
    ]


def minimal(lab: Lab) -> list[Reading]:
    ours, bare = lab.drain()["rate"], lab.minimal(lab.drain_size())
    return [Reading("drain, minimal", ours, "/s", f"raw minimal table, batch {BATCH}", bare)]


def peers(lab: Lab) -> list[Reading]:
    """At the durability that is ours by default; on Redis also at the one that is everybody's."""
    at_least = GOALS[lab.engine.name].peer
    readings = [_beside(lab, "drain, best peer", lab.drain()["rate"], at_least, lax=False)]
    if lab.engine.name == "redis":
        url = lab.filled(lab.drain_size())
        with lab.engine.lax(url):
            ours = lab.work(url)["rate"]
        readings.append(_beside(lab, "drain, best peer, process-crash", ours, at_least, lax=True))
    return readings


def _beside(lab: Lab, line: str, ours: float, at_least: float, *, lax: bool) -> Reading:
    best = lab.beside.best(lax=lax)
    lab.facts.append({"peer": best.peer, "variant": best.variant, "rate": best.rate, "lax": lax})
    return Reading(line, ours, "/s", f"{best.peer}, {best.variant} at once", best.rate, at_least=at_least)


def bulk(lab: Lab) -> list[Reading]:
    count = lab.size("bulk", lambda: lab.insert(10_000, CHUNK), 10_000, 150_000)
    ours = asyncio.run(enqueue_in_chunks(lab.engine.empty("bulk"), count, CHUNK))
    at_least = GOALS[lab.engine.name].bulk
    line = f"bulk enqueue, chunks of {CHUNK:,}"
    return [Reading(line, ours, "/s", "raw own schema, the same", lab.insert(count, CHUNK), at_least=at_least)]


def fail(lab: Lab) -> list[Reading]:
    base, full, bare = lab.drain()["rate"], lab.fail(traceback=True), lab.fail(traceback=False)
    return [
        Reading("fail to dead", full, "/s", "own drain", base, at_least=0.20),
        Reading("fail to dead, traceback=False", bare, "/s", "own drain", base, at_least=0.35),
    ]


def replay(lab: Lab) -> list[Reading]:
    async def once(url: str) -> float:
        app = Redrive(url, log=False)
        app.queue(QUEUE)
        async with app:
            start = time.perf_counter()
            done = await app.letters.replay(f"queue:{QUEUE}", reason="the bench")
            took = time.perf_counter() - start
            (row,) = (await app.tally()).queues
        check(len(done.changed), LETTERS, "changed")
        check(row.ready, LETTERS, "ready")
        return took

    return [Reading(f"replay of {LETTERS:,} letters", asyncio.run(once(lab.failed(LETTERS))), "s", at_most=0.5)]


def callers(lab: Lab) -> list[Reading]:
    one = asyncio.run(_enqueue_for(1.5, 1, lab.engine.empty("singles")))
    many = asyncio.run(_enqueue_for(1.5, CALLERS, lab.engine.empty("singles")))
    at_least = GOALS[lab.engine.name].callers
    return [Reading(f"enqueue, {CALLERS} callers", many, "/s", "1 caller", one, at_least=at_least)]


def singles(lab: Lab) -> list[Reading]:
    theirs = lab.beside.enqueue("huey", 1.5)
    ours = asyncio.run(_enqueue_for(1.5, 1, lab.engine.empty("singles")))
    return [Reading("enqueue one by one", ours, "/s", "huey on SQLite, FULL", theirs)]


async def _enqueue_for(seconds: float, callers_: int, url: str) -> float:
    app = Redrive(url, log=False)
    app.queue(QUEUE)
    count = 0

    async def call(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await app.enqueue(QUEUE, PAYLOAD)
            count += 1

    async with app:
        start = time.perf_counter()
        await asyncio.gather(*(call(start + seconds) for _ in range(callers_)))
        took = time.perf_counter() - start
        (row,) = (await app.tally()).queues
    check(row.ready, count, "ready")
    return count / took


def blocking(lab: Lab) -> list[Reading]:
    """Also without the fsync, behind which the facade could hide."""
    ours, theirs = lab.engine.empty("blocking"), lab.engine.empty("async")
    strict = _facade("blocking enqueue", ours, theirs)
    with lab.engine.lax(ours) as bare, lab.engine.lax(theirs) as bare_too:
        return [strict, _facade("blocking enqueue without waiting for the disk", bare, bare_too)]


def _facade(line: str, ours: str, theirs: str) -> Reading:
    """Medians of single calls, by turns: one through the facade, one awaited in a loop."""
    facade, app = Facade(ours, log=False), Redrive(theirs, log=False)
    facade.queue(QUEUE)
    app.queue(QUEUE)
    waited: list[float] = []
    awaited: list[float] = []

    async def one() -> float:
        start = time.perf_counter()
        await app.enqueue(QUEUE, PAYLOAD)
        return time.perf_counter() - start

    with facade, asyncio.Runner() as loop:
        loop.run(app.open())
        for _ in range(CALLS):
            awaited.append(loop.run(one()))
            start = time.perf_counter()
            facade.enqueue(QUEUE, PAYLOAD)
            waited.append(time.perf_counter() - start)
        loop.run(app.close())
    value, base = statistics.median(waited) * 1000, statistics.median(awaited) * 1000
    return Reading(line, value, "ms", "async enqueue", base, at_most=2.0)


def pickup(lab: Lab) -> list[Reading]:
    """From before the enqueue in this process until the handler in an idle worker of another one.

    Both write before that, so there are two fsyncs in it; without them it shows what is ours.
    """

    async def collect(url: str) -> list[float]:
        app = Redrive(url, log=False)
        app.queue(QUEUE)
        async with app:
            with Child("stamp", lab.scratch, {"url": url}) as worker:
                await app.enqueue(QUEUE, {"sent": time.monotonic()})
                worker.line(20.0)
                times = []
                for _ in range(SAMPLES):
                    await asyncio.sleep(random.uniform(0.01, 0.04))
                    await app.enqueue(QUEUE, {"sent": time.monotonic()})
                    times.append(float(worker.line(10.0)["latency"]))
        return sorted(times)

    url = lab.engine.empty("pickup")
    times = asyncio.run(collect(url))
    with lab.engine.lax(url) as lax:
        bare = asyncio.run(collect(lax))
    return [
        Reading("pickup from an idle worker, p50", statistics.median(times) * 1000, "ms", at_most=5.0),
        Reading("pickup from an idle worker, p99", times[int(len(times) * 0.99)] * 1000, "ms"),
        Reading("pickup without waiting for the disk, p50", statistics.median(bare) * 1000, "ms"),
    ]


def idle(lab: Lab) -> list[Reading]:
    """CPU of a worker with nothing to do, over 5 s; and of its server."""

    async def first(url: str) -> None:
        app = Redrive(url, log=False)
        app.queue(QUEUE)
        async with app:
            await app.enqueue(QUEUE, {"sent": time.monotonic()})

    url = lab.engine.empty("idle")
    asyncio.run(first(url))
    with Child("stamp", lab.scratch, {"url": url}) as worker:
        worker.line(20.0)
        time.sleep(1.0)
        before, served, start = cpu_seconds(worker.pid), lab.engine.server_cpu(), time.monotonic()
        time.sleep(5.0)
        after, served_after, took = cpu_seconds(worker.pid), lab.engine.server_cpu(), time.monotonic() - start
    spent = sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
    readings = [Reading("idle worker, share of a core", spent / took * 100, "%", at_most=0.5)]
    if served:
        share = (served_after - served) / took * 100
        readings.append(Reading("server of an idle worker, share of a core", share, "%"))
    return readings


def memory(lab: Lab) -> list[Reading]:
    return [Reading("drain, memory store", float(lab.work("memory:", fill=50_000)["rate"]), "/s")]


def snapshot(lab: Lab) -> list[Reading]:
    """Late: only PostgreSQL needs its driver."""
    from bench import pinned

    return pinned.snapshot(lab)


Row = Callable[[Lab], list[Reading]]

_EVERYWHERE: dict[str, Row] = {"drain": drain, "peers": peers, "fail": fail, "bulk": bulk, "replay": replay}
_LATER: dict[str, Row] = {"callers": callers, "pickup": pickup, "idle": idle, "cli-queue-list": shell.queue_list}
_SERVERS: dict[str, Row] = {"scaling": scaling.waiting, "busy": scaling.busy}
_SQLITE: dict[str, Row] = {
    "minimal": minimal,
    "singles": singles,
    "blocking": blocking,
    "memory": memory,
    "cli-version": shell.version,
}
_GROWTH: dict[str, Row] = {
    "grow-waiting": growth.waiting,
    "grow-letters": growth.letters,
    "letters-page": pages.page,
    "list-filtered": office.list_filtered,
    "export": office.export,
    "flat-memory": growth.memory,
    "webhook-head": webhooks.head,
}
USUAL: dict[str, dict[str, Row]] = {
    "sqlite": _EVERYWHERE | _SQLITE | _LATER,
    "postgres": _EVERYWHERE | _LATER | _SERVERS,
    "redis": _EVERYWHERE | _LATER | _SERVERS,
}
GROWTH: dict[str, dict[str, Row]] = {
    "sqlite": _GROWTH | {"wal": log.wal},
    "postgres": _GROWTH | {"pinned": snapshot},
    "redis": _GROWTH,
}
FEATURES: dict[str, Row] = {
    "ordered": features.ordered,
    "ordered-one": features.ordered_one,
    "dedupe": features.dedupe,
    "after": features.after,
    "limits": features.limits,
    "kinds": features.kinds,
    "members": features.members,
    "schedules-idle": features.schedules_idle,
    "receipts": receipts.receipts,
    "webhook-ingest": webhooks.ingest,
    "webhook-deliver": webhooks.deliver,
    "webhook-neighbour": webhooks.neighbour,
    "mailbox-cycle": mailboxes.cycle,
    "mailbox-threads": mailboxes.threads,
    "mailbox-wake": mailboxes.wake,
}
NAMED: dict[str, Row] = {"unused": features.unused}
"""Only if it is asked for by name: it needs another checkout."""
GROUPS = ("usual", "features", "growth", "all")
ONCE = frozenset(
    {"pickup", "idle", "wal", "pinned", "schedules-idle", "cli-version", "cli-queue-list", "mailbox-wake", *_GROWTH}
)
"""Rows that are samples over time in themselves and are not repeated."""


def rows_of(store: str) -> dict[str, Row]:
    return USUAL[store] | FEATURES | GROWTH[store] | NAMED


def chosen(store: str, words: Sequence[str]) -> list[str]:
    """The names of the rows meant, each once. KeyError for a word that means nothing."""
    known = rows_of(store)
    groups = {
        "usual": list(USUAL[store]),
        "features": list(FEATURES),
        "growth": list(GROWTH[store]),
        "all": [name for name in known if name not in NAMED],
    }
    names = [name for word in words for name in groups.get(word, [word])]
    for name in names:
        known[name]
    return list(dict.fromkeys(names))


def profile(lab: Lab, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The drains named, each once with and once without a profiler, on 20,000 items."""
    found = {}
    for name in names:
        changes = PROFILES[name]
        url = lab.filled(20_000)
        lab.engine.watch()
        plain = lab.work(url, **changes)
        server = lab.engine.watched(url, 20_000)
        found[name] = plain | {
            "server": server,
            "profile": lab.work(lab.filled(20_000), profile=True, **changes)["profile"],
        }
    return found


PROFILES: dict[str, dict[str, object]] = {
    "drain": {},
    "fail": {"fail": True},
    "bare": {"fail": True, "traceback": False},
}
