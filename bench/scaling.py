"""More processes on one store: with handlers that wait for something else, and with handlers that do nothing."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from bench.harness import ANSWER, Child
from bench.lab import PLAIN, Lab, Reading, check
from redrive import Redrive

NAP = 0.010
AT_ONCE = 10
"""Handlers at once in a process whose handlers wait."""


def waiting(lab: Lab) -> list[Reading]:
    """Handlers of 10 ms, ten at once per process, so that one process can do a thousand a second."""
    share = max(500, int(AT_ONCE / NAP * lab.seconds))
    one, two, four = (fleet(lab, size, size * share, nap=NAP, concurrency=AT_ONCE) for size in (1, 2, 4))
    what = f"handlers of {NAP * 1000:g} ms, {AT_ONCE} at once"
    return [
        Reading(f"2 processes, {what}", two, "/s", "1 process", one, at_least=1.8),
        Reading(f"4 processes, {what}", four, "/s", "1 process", one, at_least=3.2),
    ]


def busy(lab: Lab) -> list[Reading]:
    count = lab.drain_size()
    one, two = (fleet(lab, size, count, concurrency=lab.concurrency) for size in (1, 2))
    return [Reading("2 processes, no-op handlers", two, "/s", "1 process", one, at_least=0.85)]


def fleet(lab: Lab, size: int, count: int, *, concurrency: int, nap: float = 0.0) -> float:
    """Items per second of so many processes, from the first call of a handler to the end of the last."""
    url = lab.filled(count)
    config = PLAIN | {"url": url, "concurrency": concurrency, "nap": nap, "gate": True}
    with ExitStack() as stack:
        workers = [stack.enter_context(Child("drain", lab.scratch, config)) for _ in range(size)]
        for worker in workers:
            worker.line(ANSWER)
        for worker in workers:
            worker.go()
        said = [worker.line(ANSWER) for worker in workers]
    asyncio.run(_all_done(url, count))
    lab.facts.append({"processes": size, "nap": nap, "counts": [one["count"] for one in said]})
    began = min(one["first"] for one in said if one["count"])
    return count / float(max(one["last"] for one in said) - began)


async def _all_done(url: str, count: int) -> None:
    async with Redrive(url, log=False) as app:
        (row,) = (await app.tally()).queues
    check(row.done, count, "done")
