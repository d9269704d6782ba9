"""How big the proofs of bad links and dying servers are."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.rig.size import Size


@dataclass(frozen=True)
class Deaths:
    """R6: so many kills of the server under load, then an orderly restart, then an outage of so many seconds."""

    kills: int
    outage: float
    workers: int
    lease: float
    backlog: int  # slow items put in beforehand, so that the pace before and after is that of the workers
    limit: float = 120.0


DEATHS = {
    Size.SHORT: Deaths(kills=5, outage=60.0, workers=2, lease=2.0, backlog=8_000),
    Size.FULL: Deaths(kills=30, outage=60.0, workers=4, lease=2.0, backlog=60_000, limit=900.0),
}


@dataclass(frozen=True)
class Rides:
    """R17: workers behind a link that is in trouble for `spell` seconds at a time, `rounds` times in each way."""

    spell: float
    rounds: int
    workers: int
    lease: float
    limit: float = 60.0


RIDES = {
    Size.SHORT: Rides(spell=1.5, rounds=1, workers=2, lease=1.0),
    Size.FULL: Rides(spell=5.0, rounds=3, workers=4, lease=2.0),
}

TRIALS = {Size.SHORT: 1, Size.FULL: 50}
"""R17: how often every verb is tried in each trouble."""
