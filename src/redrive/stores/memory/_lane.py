"""One declared queue: what is ready, what runs, how much of everything there is, and what was configured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from redrive.core import lanes, meters
from redrive.core.families import member_settings
from redrive.core.item import Instant
from redrive.core.states import Disposition, State
from redrive.core.verbs import QueueSettings, QueueTally
from redrive.stores.memory._agenda import Agenda, Slot
from redrive.stores.memory._turns import Turns

HELD = "held"
PARKED = "parked"
PLAIN: lanes.Rank = ("", 0)
Kinds = tuple[str, ...] | None
"""Only these; None for all."""


@dataclass(slots=True)
class Lane:
    """Ready items without a hold lie apart by kind and level (see core.lanes). `rate_at` is the meter of the rate.

    `own`: what was configured of it. A member has its `family`, whose counts are the sums of those of its members; a
    family has `turns`.
    """

    name: str
    ready: dict[lanes.Rank, Agenda] = field(default_factory=dict)
    leased: Agenda = field(default_factory=Agenda)
    counts: Counter[str] = field(default_factory=Counter)
    paused: bool = False
    paused_by: str = ""
    paused_reason: str = ""
    own: QueueSettings = field(default_factory=QueueSettings)
    rate_at: int = 0
    family: Lane | None = None
    turns: Turns = field(default_factory=Turns)
    _resolved: tuple[QueueSettings, QueueSettings, QueueSettings] | None = None

    @property
    def settings(self) -> QueueSettings:
        """Those that hold for it."""
        if self.family is None:
            return self.own
        known = self._resolved
        if known is None or known[0] is not self.own or known[1] is not self.family.own:
            known = self._resolved = (self.own, self.family.own, member_settings(self.name, self.own, self.family.own))
        return known[2]

    def count(self, name: str, by: int) -> None:
        self.counts[name] += by
        if self.family is not None:
            self.family.counts[name] += by

    def first_ready(self, crashes_from: int = 0, *, retry: bool | None = None, kinds: Kinds = None) -> Slot | None:
        """`retry`: only what failed, crashed or was replayed before (True), or only what was not (False)."""
        firsts = (
            agenda.first()
            for (kind, level), agenda in self.ready.items()
            if crashes_from <= lanes.crashes_of(level)
            and (retry is None or lanes.is_retry(level) == retry)
            and (kinds is None or kind in kinds)
        )
        return min((slot for slot in firsts if slot is not None), default=None)

    def due(self, now: Instant, limit: int, crashes_below: int, kinds: Kinds) -> dict[int, list[Slot]]:
        """By level, for `lanes.choose`."""
        ranks = [
            (kind, level)
            for kind, level in self.ready
            if lanes.crashes_of(level) < crashes_below and (kinds is None or kind in kinds)
        ]
        found = {
            level: lanes.merged(alike, limit, lambda rank, most: self.ready[rank].due(now, most))
            for level, alike in lanes.by_level(ranks).items()
        }
        return {level: slots for level, slots in found.items() if slots}

    @property
    def is_plain(self) -> bool:
        """Nothing of it was tried before, none goes before others or has a kind, and no key is limited."""
        return self.settings.max_per_key is None and self.ready.keys() <= {PLAIN}

    @property
    def fill(self) -> int:
        """What counts against the capacity."""
        return sum(self.counts[name] for name in (State.READY, HELD, PARKED, State.LEASED))

    @property
    def running(self) -> int:
        return self.counts[State.LEASED]

    def tally(self, now: Instant) -> QueueTally:
        oldest = self.first_ready()
        return QueueTally(
            queue=self.name,
            ready=self.counts[State.READY],
            leased=self.counts[State.LEASED],
            done=self.counts[State.DONE],
            open=self.counts[Disposition.OPEN],
            archived=self.counts[Disposition.ARCHIVED],
            trash=self.counts[Disposition.TRASH],
            cancelled=self.counts[State.CANCELLED],
            oldest_due=None if oldest is None else oldest.when,
            paused=self.paused,
            paused_by=self.paused_by,
            paused_reason=self.paused_reason,
            held=self.counts[HELD],
            parked=self.counts[PARKED],
            settings=self.own,
            rate_at=meters.gives_again(self.settings.rate, self.rate_at, now),
        )
