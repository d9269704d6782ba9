"""What the demo shows, one scene after the other. Everything it prints is read from the store or from the processes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from redrive.app import Redrive
from redrive.cli.demo.app import EFFECTS, FIXED, LOAD, SCHEDULE
from redrive.cli.output import write
from redrive.core.item import Attempt, Ending, Item
from redrive.core.verbs import CauseTally


async def enqueue(app: Redrive) -> dict[str, str]:
    """Returns the queue of each id."""
    info = app.info()
    write(f"  {info.location} ({info.library}), accepted work survives {info.durability}")
    ids: dict[str, str] = {}
    for queue, payloads in LOAD.items():
        for item_id in await app.enqueue_many(queue, payloads):
            ids[str(item_id)] = queue
        write(f"  {len(payloads):>3} items in {queue}")
    return ids


async def show_retries(app: Redrive, ids: dict[str, str]) -> int:
    """One retried item's schedule as it was kept. Returns how many retries of all orders began too early."""
    early, retries = 0, 0
    for item_id in [item_id for item_id, queue in ids.items() if queue == "orders"]:
        attempts = (await app.letters.get(item_id)).attempts
        if retries == 0 and attempts and attempts[-1].ending is Ending.DONE:
            write(f"  {item_id[:8]}, for example, after planned waits of {_waits(2)} ms:")
            _show_attempts(attempts)
        so_far = Counter[Ending]()
        for before, after in pairwise(attempts):
            so_far[before.ending] += 1
            wait = _waits(so_far[before.ending])[-1]  # errors and crashes are counted apart
            retries += 1
            early += after.started_at - before.started_at < wait
    write(f"  {retries} retries in all, {early} of them before they were due")
    return early


def _waits(count: int) -> list[int]:
    return [SCHEDULE.delay(number, 0.0) or 0 for number in range(1, count + 1)]


def _show_attempts(attempts: tuple[Attempt, ...]) -> None:
    for attempt in attempts:
        since = attempt.started_at - attempts[0].started_at
        text = f": {attempt.failure.type}: {attempt.failure.text}" if attempt.failure else ""
        write(f"    +{since:>4} ms  attempt {attempt.number} {attempt.ending}{text}")


async def poison_letter(app: Redrive, place: Path) -> Item:
    """Says what became of its neighbours, whose workers it killed."""
    (poison,) = (await app.letters.find("queue:images")).items
    neighbours = Counter[int]()
    for item_id in set((place / EFFECTS).read_text().split()):
        history = await app.letters.get(item_id)
        if history.item.queue == "images":
            neighbours[sum(attempt.ending is Ending.CRASHED for attempt in history.attempts)] += 1
    for crashes, count in sorted(neighbours.items()):
        write(f"  {count} neighbours of the poison item are done; their workers were killed {crashes} times")
    return poison


async def fix_and_replay(app: Redrive, place: Path, cause: CauseTally) -> int:
    (place / FIXED).touch()
    done = await app.letters.replay(f"cause:{cause.cause}", reason="amounts with a comma are understood now")
    write(f"  replayed {len(done.changed)} letters of cause {cause.cause}, skipped {len(done.skipped)}")
    return len(done.changed)
