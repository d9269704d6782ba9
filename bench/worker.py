"""The processes of a measurement: `python -m bench.worker <role> <JSON>`; each says its figures as JSON lines."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.child import end_with_the_harness, say


class Boom(Exception):
    pass


class Meter:
    first = 0.0
    last = 0.0
    calls = 0


async def drain(config: dict[str, Any]) -> dict[str, Any]:
    """Work a queue until it is empty; the clock runs from the first handler call until the store has settled all."""
    from bench.harness import cpu_seconds, peak_memory
    from bench.load import PAYLOAD, QUEUE
    from bench.profiling import threads_cpu
    from redrive import Redrive

    app = Redrive(config["url"], log=False, traceback=config["traceback"])
    meter = handle_with(app, config)
    async with app:
        if config["fill"]:
            await app.enqueue_many(QUEUE, [PAYLOAD] * config["fill"])
        if config["gate"]:
            say(open=True)
            await asyncio.to_thread(sys.stdin.readline)
        before = threads_cpu(cpu_seconds)
        await app.run(until_idle=True)
        took = time.monotonic() - meter.first
        after = threads_cpu(cpu_seconds)
        (row,) = (await app.tally()).queues
    if config["gate"]:
        return {"count": meter.calls, "first": meter.first, "last": meter.last}
    settled = row.open if config["fail"] else row.done
    assert settled == meter.calls, f"{meter.calls} were handled, {settled} are settled"
    assert row.ready == row.leased == 0, f"{row.ready} are ready and {row.leased} leased still"
    cpu = {name: round((spent - before.get(name, 0.0)) / settled * 1e6, 2) for name, spent in after.items()}
    return {"count": settled, "rate": settled / took, "cpu_us_per_item": cpu, "peak_mb": peak_memory()}


def handle_with(app: Any, config: dict[str, Any]) -> Meter:
    """`nap`: seconds that the handler waits for something else."""
    from bench.load import QUEUE
    from redrive import Policy

    meter, nap = Meter(), float(config["nap"])

    @app.handler(QUEUE, policy=Policy(max_attempts=1), concurrency=config["concurrency"])
    async def handle(user_id: int, kind: str, body: str, tags: list[str], amount: int) -> None:  # noqa: ARG001
        meter.calls += 1
        if meter.calls == 1:
            meter.first = time.monotonic()
        if nap:
            await asyncio.sleep(nap)
        meter.last = time.monotonic()
        if config["fail"]:
            raise Boom("always")

    return meter


def run_drain(config: dict[str, Any]) -> None:
    if not config["profile"]:
        say(**asyncio.run(drain(config)))
        return
    from bench.profiling import profiler

    tool = profiler()
    tool.start()
    found = asyncio.run(drain(config))
    say(**found, profile=tool.report(found["count"]))


def run_stamp(config: dict[str, Any]) -> None:
    """A worker that waits for single items and says when each reached its handler."""
    from bench.load import QUEUE
    from redrive import Redrive

    app = Redrive(config["url"], log=False)

    @app.handler(QUEUE)
    async def handle(sent: float) -> None:
        say(latency=time.monotonic() - sent)

    async def main() -> None:
        async with app:
            await app.run()

    asyncio.run(main())


def run_own(config: dict[str, Any]) -> None:
    from bench import raw

    rate, cpu = raw.of(config["url"]).drain(config["batch"])
    say(rate=rate, cpu_us_per_item=cpu * 1e6)


def run_insert(config: dict[str, Any]) -> None:
    from bench import raw
    from bench.load import PAYLOAD

    say(rate=raw.of(config["url"]).insert(PAYLOAD, config["count"], config["chunk"]))


def run_minimal(config: dict[str, Any]) -> None:
    from bench.load import PAYLOAD
    from bench.raw.sqlite import Minimal

    engine = Minimal(config["url"])
    engine.fill(PAYLOAD, config["count"])
    say(rate=engine.drain())


def run_reader(config: dict[str, Any]) -> None:
    """Look once and never let go. A process of its own: two SQLite libraries in one would break each other's locks."""
    import sqlite3

    db = sqlite3.connect(config["url"].removeprefix("sqlite:///"), isolation_level=None)
    db.execute("begin")
    db.execute("select count(*) from queue").fetchone()
    say(reading=True)
    signal.pause()


def run_schedules(config: dict[str, Any]) -> None:
    """A worker that leads schedules of which none is due before the year is over."""
    from bench.load import QUEUE
    from redrive import Redrive

    app = Redrive(config["url"], log=False)

    @app.handler(QUEUE)
    async def handle() -> None:
        return

    for number in range(config["count"]):
        app.schedule(f"schedule-{number:05}", QUEUE, cron="59 23 31 12 *", timezone="UTC")

    async def main() -> None:
        async with app:
            say(declared=True)
            await app.run()

    asyncio.run(main())


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "drain": run_drain,
    "stamp": run_stamp,
    "own": run_own,
    "insert": run_insert,
    "minimal": run_minimal,
    "reader": run_reader,
    "schedules": run_schedules,
}


def main() -> None:
    end_with_the_harness()
    role, config = sys.argv[1:]
    ROLES[role](json.loads(config))


if __name__ == "__main__":
    main()
