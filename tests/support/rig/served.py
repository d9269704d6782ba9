"""The app that a `Serving` fleet runs. Imported by `redrive worker run` only: it takes its settings from there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from redrive import Item, Policy, Redrive, constant
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing._relay import Answer, P, Relay
from tests.support.rig.handlers import Scribe, register_mix
from tests.support.rig.log import Log
from tests.support.rig.worker import die_with_parent, transcriber


class Striking(Relay):
    """Sends SIGTERM to its own process before or after the first call of one verb."""

    def __init__(self, store: Store, strike: str) -> None:
        super().__init__(store)
        self._strike = strike

    def _reached(self, place: str) -> None:
        if place == self._strike:
            self._strike = ""
            os.kill(os.getpid(), signal.SIGTERM)

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        self._reached(f"before {verb.__name__}")
        answer = await verb(*args, **kwargs)
        self._reached(f"after {verb.__name__}")
        return answer


def register_stopping(app: Redrive, scribe: Scribe, lease: float, go: Path) -> None:  # noqa: C901 - a list of handlers
    """Handlers to be stopped in. Whoever gets an item later is done at once; `short` ones end when `go` is there."""
    policy = Policy(backoff=constant("20ms"), max_crashes=3)

    def begin(item: Item) -> bool:
        scribe.start(item)
        return item.deliveries == 1

    @app.handler("short", policy=policy, lease=lease, concurrency=3)
    async def short(item: Item) -> None:
        waiting = begin(item)
        try:
            while waiting and not go.exists():  # noqa: ASYNC110 - the word comes from another process
                await asyncio.sleep(0.01)  # noqa: TID251 - as above
        except asyncio.CancelledError:
            scribe.end(item, "cancelled")
            raise
        scribe.end(item, "done")

    @app.handler("short-sync", policy=policy, lease=lease, concurrency=3)
    def short_sync(item: Item) -> None:
        waiting = begin(item)
        while waiting and not go.exists():
            time.sleep(0.01)  # noqa: TID251 - other processes need real time
        scribe.end(item, "done")

    @app.handler("long", policy=policy, lease=lease, concurrency=3)
    async def long(item: Item) -> None:
        try:
            if begin(item):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            scribe.end(item, "cancelled")
            raise
        scribe.end(item, "done")

    @app.handler("stuck", policy=policy, lease=lease, concurrency=3)
    async def stuck(item: Item) -> None:
        waiting = begin(item)
        while waiting:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        scribe.end(item, "done")

    @app.handler("stuck-sync", policy=policy, lease=lease, concurrency=3)
    def stuck_sync(item: Item) -> None:
        if begin(item):
            threading.Event().wait()
        scribe.end(item, "done")

    @app.handler("blocking", policy=policy, lease=lease, concurrency=1)
    async def blocking(item: Item) -> None:
        waiting = begin(item)
        while waiting:
            time.sleep(60)  # noqa: TID251, ASYNC251 - what nobody should do, and some do
        scribe.end(item, "done")


def build() -> Redrive:
    folder, pid = Path(os.environ["RIG_LOGS"]), os.getpid()
    lease = float(os.environ["RIG_LEASE"])
    made = Redrive(Striking(store_from_url(os.environ["RIG_STORE"]), os.environ["RIG_STRIKE"]))
    made.events.subscribe(transcriber(Log(folder / f"events-{pid}.log")))
    scribe = Scribe(Log(folder / f"runs-{pid}.log"))
    if os.environ["RIG_SET"] == "mix":
        register_mix(made, scribe, lease)
    else:
        register_stopping(made, scribe, lease, folder / "go")
    return made


die_with_parent()
app = build()
