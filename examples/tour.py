"""The tour: `make run`. Work fails in three ways, a process is killed again and again, and nothing is lost.

Everything printed is read from the store or from the processes; the exit code is 0 only if it all adds up.
The workers are real processes, `redrive worker run tour:app`, and this file is their module.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from redrive import Item, Policy, Redrive, constant, dead_on, exponential
from redrive.cli import run as redrive_command
from redrive.core.item import Attempt, Ending
from redrive.core.verbs import CauseTally, QueueTally

MAX_CRASHES = 3
SCHEDULE = exponential("100ms", factor=2)
LOAD: dict[str, list[object]] = {
    "orders": [{"order": number, "amount": "12,50" if number % 5 == 0 else "12.50"} for number in range(1, 21)],
    "emails": [{"to": "no-address-at-all" if number == 3 else f"user{number}@example.org"} for number in range(1, 9)],
    "images": [{"name": "poison.png" if number == 4 else f"picture{number}.png"} for number in range(1, 9)],
}
MOST_PROCESSES = 12


def build(place: Path) -> Redrive:
    """The app: three queues with a way to fail each. Files in `place` stand for the world outside."""
    app = Redrive(f"sqlite:///{place}/redrive.db")

    @app.handler("orders", policy=Policy(SCHEDULE, max_attempts=3), lease="1500ms")
    async def charge(order: int, amount: str, item: Item) -> None:
        if order % 4 == 0 and item.errors < 2:
            raise ConnectionError(f"payment gateway does not answer for order {order}")
        if "," in amount and not (place / "bug-is-fixed").exists():
            raise ArithmeticError(f"amount {amount!r} of order {order} is not a number")
        finished(place, item)

    @app.handler("emails", policy=Policy(rules=[dead_on(ValueError)]), lease="1500ms")
    def send(to: str, item: Item) -> None:
        if "@" not in to:
            raise ValueError(f"{to!r} is not an address")
        finished(place, item)

    @app.handler("images", policy=Policy(constant("100ms"), max_crashes=MAX_CRASHES), lease="1500ms")
    async def shrink(name: str, item: Item) -> None:
        if name == "poison.png":
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)  # what a bug in a C library or the kernel's OOM killer does
        await asyncio.sleep(0.3)
        finished(place, item)

    return app


def finished(place: Path, item: Item) -> None:
    """The effect on the world outside: one line per run that came to its end."""
    with (place / "effects.log").open("a") as log:
        log.write(f"{item.id}\n")


if "REDRIVE_TOUR" in os.environ:  # here a worker imports us
    app = build(Path(os.environ["REDRIVE_TOUR"]))


def work(place: Path) -> int:
    """Worker processes, a new one whenever one is killed, until nothing is left to do. Returns how many were killed."""
    command = [sys.executable, "-m", "redrive", "worker", "run", "tour:app", "--until-idle"]
    environment = os.environ | {"REDRIVE_TOUR": str(place)}
    for killed in range(MOST_PROCESSES):
        with (place / "workers.log").open("a") as log:
            worker = subprocess.Popen(command, cwd=Path(__file__).parent, env=environment, stderr=log)
            code = worker.wait()
        if code == 0:
            print(f"  worker process {worker.pid} ended by itself: nothing left to do")
            return killed
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        print(f"  worker process {worker.pid} died ({how}); starting another one")
        if code > 0:
            print((place / "workers.log").read_text(), file=sys.stderr)
            sys.exit(1)
    sys.exit(f"the tour failed: {MOST_PROCESSES} worker processes were killed")


async def enqueue(place: Path) -> dict[str, str]:
    """Returns the queue of each id."""
    async with build(place) as app:
        info = app.info()
        print(f"  {info.location} ({info.library}), accepted work survives {info.durability}")
        ids = {}
        for queue, payloads in LOAD.items():
            for item_id in await app.enqueue_many(queue, payloads):
                ids[str(item_id)] = queue
            print(f"  {len(payloads):>3} items in {queue}")
    return ids


async def show_retries(place: Path, ids: dict[str, str]) -> int:
    """One retried item's schedule as it was kept. Returns how many retries of all orders began too early."""
    early, retries = 0, 0
    async with build(place) as app:
        for item_id in (item_id for item_id, queue in ids.items() if queue == "orders"):
            attempts = (await app.letters.get(item_id)).attempts
            if retries == 0 and attempts and attempts[-1].ending is Ending.DONE:
                print(f"  {item_id[:8]}, for example, after planned waits of {waits(2)} ms:")
                show_attempts(attempts)
            so_far = Counter[Ending]()
            for before, after in pairwise(attempts):
                so_far[before.ending] += 1
                wait = waits(so_far[before.ending])[-1]  # errors and crashes are counted apart
                retries += 1
                early += after.started_at - before.started_at < wait
    print(f"  {retries} retries in all, {early} of them before they were due")
    return early


def waits(count: int) -> list[int]:
    return [SCHEDULE.delay(number, 0.0) or 0 for number in range(1, count + 1)]


def show_attempts(attempts: tuple[Attempt, ...]) -> None:
    for attempt in attempts:
        since = attempt.started_at - attempts[0].started_at
        text = f": {attempt.failure.type}: {attempt.failure.text}" if attempt.failure else ""
        print(f"    +{since:>4} ms  attempt {attempt.number} {attempt.ending}{text}")


async def show_letters(place: Path) -> tuple[tuple[CauseTally, ...], Item]:
    """Returns the causes, and the poison item's letter."""
    async with build(place) as app:
        causes = await app.causes()
        for cause in causes:
            print(f"  cause {cause.cause}  {cause.count} in {cause.queue}: {cause.error}: {cause.text}")
        print()
        for item in await app.letters.find():
            reason = item.letter.reason if item.letter else ""
            counts = f"{item.errors} errors, {item.crashes} crashes"
            print(f"  letter {item.id[:8]}  {item.queue:<7} {reason:<13} {counts:<21} {item.payload.decode()}")
        (poison,) = (await app.letters.find("queue:images")).items
        neighbours = Counter[int]()
        print()
        for item_id in set((place / "effects.log").read_text().split()):
            history = await app.letters.get(item_id)
            if history.item.queue == "images":
                neighbours[sum(attempt.ending is Ending.CRASHED for attempt in history.attempts)] += 1
        for crashes, count in sorted(neighbours.items()):
            print(f"  {count} neighbours of the poison item are done; their workers were killed {crashes} times")
    return causes, poison


async def fix_and_replay(place: Path, cause: CauseTally) -> int:
    (place / "bug-is-fixed").touch()
    async with build(place) as app:
        done = await app.letters.replay(f"cause:{cause.cause}", reason="amounts with a comma are understood now")
    print(f"  replayed {len(done.changed)} letters of cause {cause.cause}, skipped {len(done.skipped)}")
    return len(done.changed)


async def tally(place: Path, ids: dict[str, str]) -> tuple[tuple[QueueTally, ...], dict[str, str]]:
    async with build(place) as app:
        states = {item_id: str((await app.get(item_id)).state) for item_id in ids}
        return (await app.tally()).queues, states


def add_up(place: Path, ids: dict[str, str], queues: tuple[QueueTally, ...], states: dict[str, str]) -> list[str]:
    """The table, and what is wrong with it."""
    wrong = []
    line = "  {:<8}{:>9}  = {:>5} + {:>5} + {:>9} + {:>5} + {:>7}"
    print(line.format("queue", "enqueued", "done", "dead", "cancelled", "ready", "running"))
    for row in queues:
        enqueued = sum(queue == row.queue for queue in ids.values())
        parts = (row.done, row.open + row.archived + row.trash, row.cancelled, row.ready, row.leased)
        print(line.format(row.queue, enqueued, *parts))
        if enqueued != sum(parts) or row.ready or row.leased:
            wrong.append(f"{row.queue} does not add up")
        counted = Counter(state for item_id, state in states.items() if ids[item_id] == row.queue)
        if (counted["done"], counted["dead"]) != parts[:2]:
            wrong.append(f"{row.queue}: the counters say {parts}, the items say {dict(counted)}")
    effects = Counter((place / "effects.log").read_text().split())
    if set(effects) != {item_id for item_id, state in states.items() if state == "done"}:
        wrong.append("what is done and what had an effect differ")
    again = sum(count > 1 for count in effects.values())
    print(f"  {len(effects)} items had their effect outside, {again} of them more than once")
    return wrong


def tour(place: Path) -> list[str]:
    began = time.monotonic()
    print("1. Work is accepted: when enqueue returns, it is on disk.")
    ids = asyncio.run(enqueue(place))

    print("\n2. Workers run. One item kills the process it runs in, whatever else that process holds.")
    killed = work(place)

    print("\n3. What failed for a while was retried, never before it was due.")
    early = asyncio.run(show_retries(place, ids))

    print("\n4. What failed for good is a dead letter, grouped by cause.")
    causes, poison = asyncio.run(show_letters(place))

    print("\n5. The poison item's letter, as `redrive letters show` tells it:")
    url = f"sqlite:///{place}/redrive.db"
    sys.stdout.flush()
    code = redrive_command(["letters", "show", poison.id[:8], "--store", url])

    print("\n6. The bug in orders is fixed; its letters are sent again, same ids, history kept.")
    (bug,) = [cause for cause in causes if cause.queue == "orders"]
    replayed = asyncio.run(fix_and_replay(place, bug))
    killed_again = work(place)

    print("\n7. The sum.")
    queues, states = asyncio.run(tally(place, ids))
    wrong = add_up(place, ids, queues, states)
    wrong += [f"{early} attempts began too early"] * (early > 0)
    wrong += [f"{killed} processes were killed, not {MAX_CRASHES}"] * (killed != MAX_CRASHES)
    wrong += ["the poison item was not dead after max_crashes"] * (poison.crashes != MAX_CRASHES)
    wrong += ["a worker was killed after the poison item was dead"] * (killed_again > 0)
    wrong += [f"{replayed} letters replayed, {bug.count} were there"] * (replayed != bug.count)
    wrong += ["redrive letters show failed"] * (code != 0)
    print(f"  the tour took {time.monotonic() - began:.1f} s")
    return wrong


def main() -> int:
    print("The promise: every accepted item ends as done, dead or cancelled, and what is dead keeps its story.\n")
    with tempfile.TemporaryDirectory(prefix="redrive-tour-") as folder:
        wrong = tour(Path(folder))
    for line in wrong:
        print(f"WRONG: {line}")
    print("\nNothing was lost." if not wrong else "\nThe promise was broken.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
