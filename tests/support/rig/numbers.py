"""Deliveries that changed their number while they ran.

A lease that runs out during an outage, or while the machine stands still, is taken back by its own worker, under a new
number, and its handler goes on. What the handler writes down has the number it was given; what the store has on record
is the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tests.support.rig import records as r

BY_HANDLER = frozenset({"done", "failed", "dead", "snoozed"})

Run = tuple[str, int]


def renumbered(records: Sequence[r.Record]) -> list[r.Record]:
    """Each run under the number under which its own process settled it, if nobody ran under that number."""
    moved = _moved(records)
    return [_moved_record(record, moved) for record in records]


def _moved(records: Sequence[r.Record]) -> dict[Run, int]:
    pids = {record.name: record.pid for record in records if isinstance(record, r.Worker)}
    settled = {(record.id, record.delivery): record for record in records if isinstance(record, r.Settled)}
    last: dict[str, list[r.Start]] = {}
    for record in records:
        if isinstance(record, r.Start):
            last.setdefault(record.id, []).append(record)
    moved: dict[Run, int] = {}
    for (item_id, delivery), end in settled.items():
        before = [start for start in last.get(item_id, ()) if start.delivery <= delivery]
        start = max(before, key=lambda one: one.delivery, default=None)
        if start is None or start.delivery == delivery or end.ending not in BY_HANDLER:
            continue
        if start.pid == pids.get(end.worker) and (item_id, start.delivery) not in settled:
            moved[item_id, start.delivery] = delivery
    return moved


def _moved_record(record: r.Record, moved: dict[Run, int]) -> r.Record:
    if isinstance(record, r.Start | r.End):
        return replace(record, delivery=moved.get((record.id, record.delivery), record.delivery))
    if isinstance(record, r.Follow):
        return replace(record, delivery=moved.get((record.parent, record.delivery), record.delivery))
    return record
