"""How big a proof is: the one place that says so."""

import os
from dataclasses import dataclass
from enum import StrEnum


class Size(StrEnum):
    SHORT = "short"  # `make prove`
    FULL = "full"  # before a release: REDRIVE_SIZE=full make prove


def proof_size() -> Size:
    """The size of this run of the proofs."""
    return Size.FULL if os.environ.get("REDRIVE_SIZE") == "full" else Size.SHORT


@dataclass(frozen=True)
class Kills:
    """R4: so many items, workers, and workers killed. `lease` in seconds."""

    items: int
    workers: int
    kills: int
    lease: float
    limit: float  # seconds for everything


KILLS = {
    Size.SHORT: Kills(items=3_000, workers=8, kills=20, lease=1.0, limit=200),
    Size.FULL: Kills(items=100_000, workers=8, kills=200, lease=2.0, limit=3_000),
}

CRASH_ITEMS = 30
"""R3: how many plain items the scenario has, beside twenty that are bound to others."""

CRASH_POINTS = {Size.SHORT: 40, Size.FULL: 100_000}
"""R3: how many points of a store and kind are tried, evenly spread; all of them in the full size."""

ZOMBIES = {Size.SHORT: 10, Size.FULL: 100}
"""R8: rounds with a stopped process; each round tries every kind of late write."""

RETRIES = {Size.SHORT: 2_000, Size.FULL: 20_000}
"""R12: retries due within one minute."""

RETRY_SPELL = {Size.SHORT: 6.0, Size.FULL: 60.0}
"""R12 by the real clock: seconds over which as many retries are spread."""

POISON = {Size.SHORT: 100, Size.FULL: 100}
"""R10: healthy items beside the poison."""


@dataclass(frozen=True)
class Rolling:
    """R25: workers stopped one after the other, each at a random moment within its first `spell` seconds."""

    items: int
    stops: int
    spell: float


ROLLING = {
    Size.SHORT: Rolling(items=3_000, stops=15, spell=0.5),
    Size.FULL: Rolling(items=50_000, stops=200, spell=1.0),
}

CUTS = {Size.SHORT: 40, Size.FULL: 1_000}
"""R7: power cuts of each kind."""

FAILED_SYNCS = {Size.SHORT: range(1, 51), Size.FULL: range(1, 51)}
"""R19: which sync fails, counted from the moment the database is made."""


@dataclass(frozen=True)
class Backlog:
    """R22: commits of twenty items before and after a long reader, and while it reads."""

    steady: int
    reading: int


BACKLOG = {
    Size.SHORT: Backlog(steady=300, reading=3_000),
    Size.FULL: Backlog(steady=3_000, reading=60_000),
}

FAILED_WRITES = {Size.SHORT: range(1, 2_400, 97), Size.FULL: range(1, 2_400, 7)}
"""R19: which write fails, counted in the same way."""

HOSTILE = {Size.SHORT: 50, Size.FULL: 5_000}
"""R30: lists of generated documents; the sixty of the table are always all tried."""


@dataclass(frozen=True)
class Crowd:
    """R28: processes on one file, and how many transactions each makes."""

    processes: int
    transactions: int


CROWD = {
    Size.SHORT: Crowd(processes=8, transactions=2_000),
    Size.FULL: Crowd(processes=16, transactions=10_000),
}

CUT_ANSWERS = {Size.SHORT: 200, Size.FULL: 1_000}
"""R16: answers of a server that are lost on the link, at least."""

WAITING = {Size.SHORT: 100_000, Size.FULL: 1_000_000}
"""R22: items that wait, nine in ten of them delayed or paused."""

WAITING_BOUND = {Size.SHORT: 20_000, Size.FULL: 1_000_000}
"""R22: items that wait for others, or for room under a limit."""

PINNED = {Size.SHORT: 16_000, Size.FULL: 16_000}
"""R22: items that are drained on PostgreSQL while somebody has an old snapshot."""

TWINS = {Size.SHORT: 40, Size.FULL: 1_000}
"""R24: dedupe keys, each put 64 times at once."""


@dataclass(frozen=True)
class Lines:
    """R24: order keys, items of each, and workers killed while they work on them."""

    keys: int
    items: int
    kills: int


LINES = {
    Size.SHORT: Lines(keys=20, items=50, kills=10),
    Size.FULL: Lines(keys=200, items=500, kills=100),
}

LIMITED = {Size.SHORT: Lines(5, 80, 8), Size.FULL: Lines(20, 500, 100)}
"""R24: the same for limits."""

OFFERED = {Size.SHORT: 5_000, Size.FULL: 50_000}
"""R21: items offered to a queue that takes a third of them."""

PRESSURE = {Size.SHORT: 30.0, Size.FULL: 300.0}
"""R21 by the real clock: seconds of too much."""

HERD = {Size.SHORT: 3_000, Size.FULL: 50_000}
"""R23: retries due in the same second."""

CROWDED = {Size.SHORT: 3_000, Size.FULL: 100_000}
"""R23: items of one dead endpoint, or of one tenant that floods, beside those of healthy ones."""

REPLAYED = {Size.SHORT: 3_000, Size.FULL: 10_000}
"""Letters replayed at once while fresh work comes in."""

LEADERS = {Size.SHORT: 10, Size.FULL: 100}
"""R29: schedulers killed or stopped, one after the other, by turns."""


@dataclass(frozen=True)
class LoopKills:
    """Messages for loops, how many more kill whoever works on them, and processes killed. `limit` in seconds."""

    messages: int
    deadly: int
    kills: int
    limit: float


LOOP_KILLS = {
    Size.SHORT: LoopKills(messages=200, deadly=3, kills=20, limit=200),
    Size.FULL: LoopKills(messages=8_000, deadly=100, kills=1_000, limit=3_000),
}

OUTAGES = {Size.SHORT: 6.0, Size.FULL: 60.0}
"""M-36: seconds for which the server of loops is away."""


@dataclass(frozen=True)
class HookKills:
    """Webhooks of an ordered endpoint, and processes killed while they are delivered. `limit` in seconds."""

    hooks: int
    kills: int
    limit: float


HOOK_KILLS = {
    Size.SHORT: HookKills(hooks=2_000, kills=10, limit=200),
    Size.FULL: HookKills(hooks=10_000, kills=200, limit=3_000),
}
