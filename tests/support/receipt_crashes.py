"""Receipts are sent, and the process is killed at one point after another. What the next process makes of it is told.

    python -m tests.support.receipt_crashes <folder> <store> <broker> <kind> <points> [<kind> <points> ...]

A point of kind `sql` is a statement that writes, or a commit, of SQLite: SIGKILL before the n-th of them. A point of
kind `verb` is a call of the store: SIGKILL before it, or when it is done and nobody was told. A point of kind `target`
is a call of the broker, which kills its caller before it does what was asked for, or after. For each point this process
forks the scenario, forks the drain, and prints one line. Points: numbers such as `1,2,3`; `count`: a run without any;
`some:3`: such a run, and then so many of its points, evenly spread.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from redrive.core.item import History, Instant, Millis
from redrive.core.states import State
from redrive.receipts.client import ReceiptClient
from redrive.receipts.model import Envelope
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.faults import FaultyStore
from tests.support.broker import Call, Step, reset, rpc_error, status, tool_error
from tests.support.rig.crash import MUTATING, TRACEABLE, SqlPoints, spread
from tests.support.rig.fork import Child
from tests.support.stores import fresh_store

Result = dict[str, Any]

SCENES = {
    "ok": {"complete": "done"},
    "flaky": {"failed": "done"},
    "unanswered": {"complete": "done"},
    "refused": {"complete": "dead"},
    "down": {"complete": "dead"},
    "gone": {"complete": "cancelled"},
    "both": {"running": "done or cancelled", "complete": "done"},
}
"""By lease: the receipts that are sent, and how each must end, whoever dies on the way."""
HURRY = 20
"""The next process lives so much faster: it waits for the leases of the dead, and after a crash."""
TRIES: dict[str, Any] = {"max_receipt_retries": 2, "backoff_base": 0.01}


class HastyClock:
    """An hour later, and in a hurry."""

    def __init__(self) -> None:
        self._start = time.monotonic_ns()
        self._wall = time.time_ns() // 1_000_000 + 3_600_000

    def monotonic(self) -> Millis:
        return (time.monotonic_ns() - self._start) * HURRY // 1_000_000

    def now(self) -> Instant:
        return self._wall + self.monotonic()

    async def sleep(self, duration: Millis) -> None:
        await asyncio.sleep(duration / 1000 / HURRY)  # noqa: TID251 - a real process, with real sockets

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        try:
            async with asyncio.timeout(timeout / 1000 / HURRY):
                return await event.wait()
        except TimeoutError:
            return False


def lease_of(kind: str, point: int | None, scene: str) -> str:
    return f"{kind}.{point or 0}.{scene}"


class Executioner:
    """The rule of the broker: how it answers each scene, and whom it kills. The worker's name is its process."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def met(self, call: Call, earlier: int) -> Step | None:
        run, _, scene = str(call.arguments["lease_id"]).rpartition(".")
        kind, _, point = run.partition(".")
        self.calls[run] = number = self.calls.get(run, 0) + 1
        chosen = int(point)
        if kind == "target" and chosen and number == (chosen + 1) // 2:
            os.kill(int(call.arguments["worker_id"]), signal.SIGKILL)
            if chosen % 2:
                return reset()
        return _answer(scene, earlier)


def _answer(scene: str, earlier: int) -> Step | None:
    match scene:
        case "flaky" if earlier == 0:
            return status(500)
        case "unanswered" if earlier == 0:
            return reset(done=True)
        case "refused":
            return rpc_error("QUOTA_EXCEEDED")
        case "down":
            return status(503)
        case "gone":
            return tool_error("LEASE_INVALID_OR_EXPIRED")
        case _:
            return None


async def play(store: Store, broker: str, kind: str, point: int | None, ledger: Path) -> None:
    """Send them all. What was durable by the client's own word is in the ledger before anything else is done."""
    client = ReceiptClient(broker, store, log=False, actor="crash", **TRIES)
    async with client:
        for scene, receipts in SCENES.items():
            for receipt_status in receipts:
                said = {
                    "lease_id": lease_of(kind, point, scene),
                    "task_id": "t",
                    "worker_id": str(os.getpid()),
                    "status": receipt_status,
                }
                kept = await client.submit(said)
                with ledger.open("a") as file:
                    file.write(f"{json.dumps([kept, scene, receipt_status])}\n")
        for line in ledger.read_text().splitlines():
            await client.wait(json.loads(line)[0])


def scenario(url: str, broker: str, kind: str, point: int | None, ledger: Path) -> int:
    """The number of points passed, for whoever counts. With a chosen point it does not return."""

    def kill(_: object = None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if kind == "sql":
        points = SqlPoints(kill, point)
        points.install()
        asyncio.run(play(store_from_url(url + TRACEABLE), broker, kind, point, ledger))
        return points.passed
    faulty = FaultyStore(store_from_url(url), counted=MUTATING if kind == "verb" else ())
    if point is not None and kind == "verb":
        faulty.crash_at(point, kill)
    asyncio.run(play(faulty, broker, kind, point, ledger))
    return faulty.points


async def drain(url: str, broker: str) -> Result:
    """What a client of a new process makes of what was left."""
    clock = HastyClock()
    client = ReceiptClient(broker, store_from_url(url, clock=clock), log=False, actor="drain", clock=clock, **TRIES)
    async with client:
        while any(row.ready + row.leased + row.held + row.parked for row in (await client.app.tally()).queues):
            await clock.sleep(100)
        items = [(await client.app.history(item.id)) for item in (await client.app.find("queue:receipts")).items]
        damage = (await client.app.check()).findings
    return {
        "items": [_told(each) for each in items],
        "damage": [f"{finding.kind}: {finding.text}" for finding in damage],
    }


def _told(history: History) -> Result:
    item = history.item
    receipt = Envelope.decode(item.payload).open()
    notes = [*(attempt.note for attempt in history.attempts), *(deed.reason for deed in history.deeds)]
    return {
        "id": item.id,
        "scene": receipt.lease_id.rpartition(".")[2],
        "status": receipt.status,
        "state": str(State(item.state)),
        "superseded": any("superseded: " in note for note in notes),
    }


def try_point(folder: Path, store: str, broker: str, kind: str, point: int | None, *, repeats: bool = False) -> int:
    """How many points were passed, if it was not killed. `repeats`: then it is tried again, at an earlier one."""
    place = folder / f"{kind}-{point}"
    place.mkdir(parents=True)
    ledger = place / "ledger.jsonl"
    with fresh_store(store, place) as url:
        ledger.touch()
        died, passed = Child(lambda: scenario(url, broker, kind, point, ledger)).wait()
        drained, found = Child(lambda: asyncio.run(drain(url, broker))).wait()
    kept = [json.loads(line) for line in ledger.read_text().splitlines()]
    missed = repeats and died == 0
    result = {"kind": kind, "point": point, "died": died, "passed": passed, "drained": drained, "kept": kept}
    print(json.dumps({**result, "found": found, "missed": missed}), flush=True)  # noqa: T201 - the answer to whoever started this process
    shutil.rmtree(place)
    return passed if isinstance(passed, int) else 0


def try_points(folder: Path, store: str, broker: str, kind: str, points: str) -> None:
    word, _, some = points.partition(":")
    if word in ("count", "some"):
        passed = try_point(folder, store, broker, kind, None)
        # Not the last ones: how often somebody looks for work depends on time, and not every run gets there.
        chosen = spread(passed * 9 // 10, int(some)) if some else []
    else:
        chosen = [int(each) for each in points.split(",")]
    tried = set(chosen)
    for first in chosen:
        point = first
        passed = try_point(folder, store, broker, kind, point, repeats=bool(some))
        while some and passed:
            # This run ended before its point, and so may the next.
            point = max(set(range(1, min(point, passed) + 1)) - tried)
            tried.add(point)
            passed = try_point(folder, store, broker, kind, point, repeats=True)


def main() -> None:
    folder, store, broker, *rest = sys.argv[1:]
    # What is imported here need not be in every child.
    for module in (f"redrive.stores.{store}", "redrive.engine.worker"):
        import_module(module)
    for kind, points in zip(rest[::2], rest[1::2], strict=True):
        try_points(Path(folder), store, broker, kind, points)


if __name__ == "__main__":
    main()
