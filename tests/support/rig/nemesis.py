"""Kills workers at random, but only one whose handler has started: the kill of an idle worker proves nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from tests.support.rig.fleet import Fleet, Member
from tests.support.rig.log import now_ns
from tests.support.rig.patience import eventually


class Nemesis:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self.open_runs = 0
        self.last_ns = 0

    async def strike(self, more: Callable[[], Awaitable[None]], *, limit: float) -> Member:
        """Kill one worker in the middle of a handler and put another in its place.

        `more` is called while nobody works: all there was to do may have been done before we came to look.
        """
        found: list[Member] = []

        async def caught() -> bool:
            found[:] = [member for member in self._fleet.alive if member.look()]
            if not found:
                await more()
                return False
            found[:] = [self._dice.choice(found)]
            # Stopped first: on a busy machine whatever ran at the look has ended long before the kill.
            if found[0].halt() and found[0].look():
                return True
            found[0].go_on()
            return False

        await eventually(caught, limit=limit, what="a handler that runs", poll=0.002)
        (victim,) = found
        self._fleet.kill(victim)
        self.last_ns = now_ns()
        self.open_runs += len(victim.look())
        self._fleet.start()
        return victim
