"""Whether the demo adds up: the counters, the items one by one, and the effects outside must say the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec import Struct

from redrive.app import Redrive
from redrive.cli.demo.app import EFFECTS, LOAD
from redrive.cli.output import write
from redrive.core.verbs import QueueTally

_LINE = "  {:<8}{:>9}  = {:>5} + {:>5} + {:>9} + {:>5} + {:>7}"


class Sums(Struct, frozen=True):
    queues: tuple[QueueTally, ...]
    states: dict[str, str]


async def ask(app: Redrive, ids: dict[str, str]) -> Sums:
    """Of the demo's queues: what others have in the store is theirs to add up."""
    states = {item_id: str((await app.get(item_id)).state) for item_id in ids}
    return Sums(tuple([row for row in (await app.tally()).queues if row.queue in LOAD]), states)


def add_up(place: Path, ids: dict[str, str], found: Sums) -> list[str]:
    """Prints the table. Gives what is wrong with it."""
    wrong: list[str] = []
    write(_LINE.format("queue", "enqueued", "done", "dead", "cancelled", "ready", "running"))
    for row in found.queues:
        enqueued = sum(queue == row.queue for queue in ids.values())
        parts = (row.done, row.open + row.archived + row.trash, row.cancelled, row.ready, row.leased)
        write(_LINE.format(row.queue, enqueued, *parts))
        if enqueued != sum(parts) or row.ready or row.leased:
            wrong.append(f"{row.queue} does not add up")
        counted = Counter(state for item_id, state in found.states.items() if ids[item_id] == row.queue)
        if (counted["done"], counted["dead"]) != parts[:2]:
            wrong.append(f"{row.queue}: the counters say {parts}, the items say {dict(counted)}")
    effects = Counter((place / EFFECTS).read_text().split())
    if set(effects) != {item_id for item_id, state in found.states.items() if state == "done"}:
        wrong.append("what is done and what had an effect differ")
    again = sum(count > 1 for count in effects.values())
    write(f"  {len(effects)} items had their effect outside, {again} of them more than once")
    return wrong
