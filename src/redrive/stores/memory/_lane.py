"""One declared queue: what is ready, what runs, how much of everything there is, and what was configured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from redrive.core import lanes, meters
from redrive.core.item import Instant
from redrive.core.states import Disposition, State
from redrive.core.verbs import QueueSettings, QueueTally
from redrive.stores.memory._agenda import Agenda, Slot

HELD = "held"
PARKED = "parked"


@dataclass(slots=True)
class Lane:
    """Ready items without a hold lie apart by their level (see core.lanes). `rate_at` is the meter of the rate."""

    name: str
    ready: dict[int, Agenda] = field(default_factory=dict)
    leased: Agenda = field(default_factory=Agenda)
    counts: Counter[str] = field(default_factory=Counter)
    paused: bool = False
    paused_by: str = ""
    paused_reason: str = ""
    settings: QueueSettings = field(default_factory=QueueSettings)
    rate_at: int = 0

    def first_ready(
        self, crashes_from: int = 0, crashes_below: int | None = None, *, retry: bool | None = None
    ) -> Slot | None:
        """`retry`: only what failed, crashed or was replayed before (True), or only what was not (False)."""
        firsts = (
            agenda.first()
            for level, agenda in self.ready.items()
            if crashes_from <= lanes.crashes_of(level)
            and (crashes_below is None or lanes.crashes_of(level) < crashes_below)
            and (retry is None or lanes.is_retry(level) == retry)
        )
        return min((slot for slot in firsts if slot is not None), default=None)

    def due(self, now: Instant, limit: int, crashes_below: int) -> dict[int, list[Slot]]:
        """By level, for `lanes.choose`."""
        found = {
            level: agenda.due(now, limit)
            for level, agenda in self.ready.items()
            if lanes.crashes_of(level) < crashes_below
        }
        return {level: slots for level, slots in found.items() if slots}

    @property
    def is_plain(self) -> bool:
        """Nothing of it was tried before, none goes before others, and no key is limited."""
        return self.settings.max_per_key is None and self.ready.keys() <= {0}

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
            settings=self.settings,
            rate_at=meters.gives_again(self.settings.rate, self.rate_at, now),
        )
