"""Handlers that do nothing but write down that they ran, and how they ended."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from pathlib import Path

from redrive import Dead, Item, Policy, Redrive, Snooze, constant
from redrive.stores.clock import Clock, SystemClock
from tests.support.rig import records as r
from tests.support.rig.deaths import die, take_descriptors
from tests.support.rig.log import Write, now_ns

MIX = ("ok", "ok-sync", "flaky", "flaky-sync", "doomed", "slow", "slow-sync", "chain")
"""The queues of a random-kill run; `leaf` takes the follow-ups of `chain`."""


class Scribe:
    def __init__(self, log: Write, clock: Clock | None = None, pid: int | None = None) -> None:
        self.log = log
        self.pid = pid or os.getpid()
        self._clock = clock or SystemClock()

    def start(self, item: Item) -> None:
        at, until = self._clock.now(), item.lease_until or 0
        self.log(r.Start(item.id, item.attempt, item.deliveries, self.pid, now_ns(), at, until))

    def end(self, item: Item, how: str) -> None:
        self.log(r.End(item.id, item.attempt, item.deliveries, self.pid, now_ns(), how, self._clock.now()))


def register_mix(app: Redrive, scribe: Scribe, lease: float) -> None:  # noqa: C901 - a list of handlers
    """Kills are random here, so crashes alone must not make a letter: what ends dead is known beforehand."""
    usual = Policy(backoff=constant("20ms"), max_attempts=5, max_crashes=1_000)
    doomed = Policy(backoff=constant("20ms"), max_attempts=3, max_crashes=1_000)

    @app.handler("ok", policy=usual, lease=lease, concurrency=10)
    async def ok(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done")

    @app.handler("ok-sync", policy=usual, lease=lease, concurrency=3)
    def ok_sync(item: Item) -> str:
        scribe.start(item)
        scribe.end(item, "done")
        return item.id

    @app.handler("flaky", policy=usual, lease=lease, concurrency=10)
    async def flaky(item: Item) -> None:
        _flaky(scribe, item)

    @app.handler("flaky-sync", policy=usual, lease=lease, concurrency=3)
    def flaky_sync(item: Item) -> None:
        _flaky(scribe, item)

    @app.handler("doomed", policy=doomed, lease=lease, concurrency=10)
    async def never_works(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "failed")
        raise RuntimeError("never works")

    @app.handler("slow", policy=usual, lease=lease, concurrency=5)
    async def slow(item: Item) -> None:
        scribe.start(item)
        try:
            await asyncio.sleep(0.05)  # noqa: TID251 - the time in which the nemesis finds this handler running
        except asyncio.CancelledError:
            scribe.end(item, "cancelled")
            raise
        scribe.end(item, "done")

    @app.handler("slow-sync", policy=usual, lease=lease, concurrency=3)
    def slow_sync(item: Item) -> None:
        scribe.start(item)
        time.sleep(0.03)  # noqa: TID251 - the time in which the nemesis finds this handler running
        scribe.end(item, "done")

    @app.handler("chain", policy=usual, lease=lease, concurrency=10)
    async def chain(item: Item) -> None:
        scribe.start(item)
        follow_up = app.follow_up("leaf", {"parent": item.id})
        scribe.log(r.Follow(str(follow_up), item.id, item.deliveries, now_ns()))
        scribe.end(item, "done")

    @app.handler("leaf", policy=usual, lease=lease, concurrency=10)
    async def leaf(item: Item) -> None:
        scribe.start(item)
        scribe.end(item, "done")


def _flaky(scribe: Scribe, item: Item) -> None:
    scribe.start(item)
    if item.errors < 2:
        scribe.end(item, "failed")
        raise ConnectionError("works the third time")
    scribe.end(item, "done")


def register_zombie(app: Redrive, scribe: Scribe, lease: float) -> None:
    """`late`: the first delivery waits for the file `go`, or for ever; whoever gets the item later is done at once."""

    @app.handler("late", policy=Policy(backoff=constant("20ms"), max_crashes=1_000), lease=lease)
    async def late(mode: str, go: str, item: Item) -> None:
        scribe.start(item)
        if item.deliveries == 1:
            try:
                while not (go and Path(go).exists()):  # noqa: ASYNC110 - the word comes from another process
                    await asyncio.sleep(0.01)  # noqa: TID251 - as above; the process is stopped while it sleeps
            except asyncio.CancelledError:
                scribe.end(item, "cancelled")
                raise
            _end_as(scribe, item, mode)
        else:
            scribe.end(item, "done")


def _end_as(scribe: Scribe, item: Item, mode: str) -> None:
    endings: dict[str, tuple[str, Exception]] = {
        "fail": ("failed", RuntimeError("too late")),
        "dead": ("dead", Dead("too late")),
        "snooze": ("snoozed", Snooze("1h")),
    }
    how, error = endings.get(mode, ("done", None))
    scribe.end(item, how)
    if error is not None:
        raise error


def register_poison(app: Redrive, scribe: Scribe, lease: float) -> None:
    """`mixed`: items that kill their process, each in its way, among healthy ones."""

    @app.handler("mixed", policy=Policy(backoff=constant("20ms"), max_crashes=3), lease=lease, concurrency=20)
    async def mixed(item: Item, death: str = "") -> None:
        scribe.start(item)
        await asyncio.sleep(0.02)  # noqa: TID251 - neighbours are in the same process when it dies
        if death:
            await die(death)
        scribe.end(item, "done")

    @app.handler("leaking", lease=lease)
    async def leaking(item: Item) -> None:
        scribe.start(item)
        take_descriptors()
        scribe.end(item, "done")


def register_bound(app: Redrive, scribe: Scribe, lease: float) -> None:
    """`ordered`, `limited`: items that fail, and some that die at once, as their ids say; kills alone are no reason."""
    policy = Policy(backoff=constant("10ms"), max_crashes=1_000)

    async def run(item: Item) -> None:
        scribe.start(item)
        luck = zlib.crc32(item.id.encode()) % 100
        try:
            await asyncio.sleep(0.005 + luck / 20_000)  # noqa: TID251 - the time in which the nemesis finds it running
        except asyncio.CancelledError:
            scribe.end(item, "cancelled")
            raise
        if luck < 15 and item.queue == "ordered" and not item.replays:
            scribe.end(item, "dead")
            raise Dead("as its id says")
        if luck < 40 and not item.errors:
            scribe.end(item, "failed")
            raise ConnectionError("works the second time")
        scribe.end(item, "done")

    @app.handler("ordered", policy=policy, lease=lease, concurrency=10)
    async def ordered(item: Item) -> None:
        await run(item)

    @app.handler("limited", policy=policy, lease=lease, concurrency=10)
    async def limited(item: Item) -> None:
        await run(item)
