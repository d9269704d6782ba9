"""Deliveries that changed their number while they ran.

A lease that runs out during an outage, or while the machine stands still, is taken back by its own worker, under a new
number, and its handler goes on. What the handler writes down has the number it was given; what the store has on record
is the new one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tests.support.rig import records as r

BY_HANDLER = frozenset({"done", "failed", "dead", "snoozed", "cancelled", "released"})

Run = tuple[str, int]


def renumbered(records: Sequence[r.Record]) -> list[r.Record]:
    """Each run under the number under which its own process said its last word, if nobody ran under that number."""
    moved = _moved(records)
    return [_moved_record(record, moved) for record in records]


def _moved(records: Sequence[r.Record]) -> dict[Run, int]:
    pids = {record.name: record.pid for record in records if isinstance(record, r.Worker)}
    settled = {(one.id, one.delivery): one for one in records if isinstance(one, r.Settled)}
    accepted = {run: pids.get(one.worker) for run, one in settled.items() if one.ending in BY_HANDLER}
    # An answer may be lost, and the item have gone on when the word is said again: then what counted is refused.
    refused = {(one.id, one.delivery): pids.get(one.worker) for one in records if isinstance(one, r.Refused)}
    # What was taken back may be taken away before its handler has ended: then nothing is said of the old number.
    lost = {(one.id, one.delivery): pids.get(one.worker) for one in records if isinstance(one, r.Lost)}
    starts: defaultdict[str, dict[int, r.Start]] = defaultdict(dict)
    for record in records:
        if isinstance(record, r.Start):
            starts[record.id][record.delivery] = record
    moved: dict[Run, int] = {}
    for words, silent in ((lost, refused), (refused, {}), (accepted, {})):
        for (item_id, delivery), pid in sorted(words.items()):
            start = starts[item_id].get(max((one for one in starts[item_id] if one <= delivery), default=0))
            if start is None or start.pid != pid:
                continue
            if (item_id, start.delivery) not in settled and (item_id, start.delivery) not in silent:
                moved[item_id, start.delivery] = delivery
    return moved


def _moved_record(record: r.Record, moved: dict[Run, int]) -> r.Record:
    if isinstance(record, r.Start | r.End):
        return replace(record, delivery=moved.get((record.id, record.delivery), record.delivery))
    if isinstance(record, r.Follow):
        return replace(record, delivery=moved.get((record.parent, record.delivery), record.delivery))
    return record
