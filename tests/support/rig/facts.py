"""The rig's records by what the checker asks them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import assert_never

from tests.support.rig import records as r

ENDED = frozenset({"done", "dead", "cancelled"})


class Facts:
    def __init__(self, history: Iterable[r.Record]) -> None:
        self.invoked: set[str] = set()
        self.not_before: dict[str, int] = {}
        self.payloads: dict[str, bytes] = {}
        self.seen: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.follows: list[r.Follow] = []
        self.starts: defaultdict[str, list[r.Start]] = defaultdict(list)
        self.ends: dict[tuple[str, int], r.End] = {}
        self.pids: dict[str, int] = {}
        self.settled: defaultdict[str, dict[int, r.Settled]] = defaultdict(dict)
        self.given_up: set[tuple[str, int]] = set()
        self.reclaimed: defaultdict[str, list[r.Reclaimed]] = defaultdict(list)
        self.struck: defaultdict[int, list[r.Struck]] = defaultdict(list)
        self.troubles: defaultdict[int, list[r.Trouble]] = defaultdict(list)
        for record in history:
            self._add(record)
        for starts in self.starts.values():
            starts.sort(key=lambda start: (start.delivery, start.ns))

    def _add(self, record: r.Record) -> None:  # noqa: C901 - one line per kind of record
        match record:
            case r.Invoke():
                self.invoked.add(record.id)
                self.not_before[record.id] = record.at + record.delay
                if record.payload is not None:
                    self.payloads[record.id] = record.payload
            case r.Told():
                self.told[record.id] = record.answer
            case r.Follow():
                self.follows.append(record)
            case r.Start():
                self.starts[record.id].append(record)
            case r.End():
                self.ends[record.id, record.delivery] = record
            case r.Worker():
                self.pids[record.name] = record.pid
            case r.Settled():
                self.settled[record.id].setdefault(record.delivery, record)
            case r.Refused() | r.Lost():
                self.given_up.add((record.id, record.delivery))
            case r.Reclaimed():
                self.reclaimed[record.id].append(record)
            case r.Struck():
                self.struck[record.pid].append(record)
            case r.Seen():
                self.seen[record.id] = record.lies
            case r.Trouble():
                self.troubles[record.pid].append(record)
            case _:
                assert_never(record)

    def was_struck(self, worker: str) -> bool:
        return any(blow.signal != "cont" for blow in self.struck.get(self.pids.get(worker, -1), ()))

    def lapsed(self, item_id: str, worker: str) -> bool:
        """The lease ran out under a worker, dead or alive, and a reaper said so."""
        return any(one.lost_by == worker for one in self.reclaimed.get(item_id, ()))
