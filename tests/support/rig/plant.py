"""Planted bugs: the scenario on a store that cheats, judged by the same checker.

    python -m tests.support.rig.plant <folder> <store>

Prints the faults that the checker names, for each bug. A rig that finds nothing here would find nothing anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from redrive.core.decide import ToDead, ToDone, ToReady
from redrive.core.item import Item, Millis, NewItem
from redrive.core.select import Match
from redrive.core.verbs import Answer, LeaseRequest, PutResult, Settled, Settlement, Verdict
from redrive.stores.clock import SystemClock
from redrive.stores.url import store_from_url
from redrive.testing._relay import Answer as Any_
from redrive.testing._relay import P, Relay
from tests.support.rig import records as r
from tests.support.rig.contest import contest
from tests.support.rig.log import read_all
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.scenario import Place, build, drain, play
from tests.support.stores import fresh_store

HOUR = 3_600_000
ITEMS = 16
PATIENCE = 60.0
AT_ONCE = 3


class Honest(Relay):
    """Nothing planted: the checker must stay silent."""

    async def relay(self, verb: Callable[P, Awaitable[Any_]], *args: P.args, **kwargs: P.kwargs) -> Any_:
        return await verb(*args, **kwargs)


class Forgetful(Honest):
    """Accepts some items and writes nothing: an answer before the commit."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **how: Any) -> PutResult:
        if items[0].id == "item-03":
            return PutResult(tuple(item.id for item in items))
        return await super().put(items, within, **how)


class Silent(Honest):
    """Says that an end was applied, and swallows the error of the commit: the item runs again when its lease lapses."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        kept = [one for one in settlements if not (one.id == "item-00" and isinstance(one.decision, ToDone))]
        settled = await super().settle(kept, then)
        if len(kept) == len(settlements):
            return settled
        by_id = {answer.id: answer for answer in settled.answers}
        answers = [by_id.get(one.id, Answer(one.id, Verdict.APPLIED)) for one in settlements]
        return replace(settled, answers=tuple(answers))


class Changing(Honest):
    """Writes something else than it was told."""

    def change(self, one: Settlement) -> Settlement:
        return one

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        return await super().settle([self.change(one) for one in settlements], then)


class Childless(Changing):
    """Follow-ups in a second transaction, which never came."""

    def change(self, one: Settlement) -> Settlement:
        return replace(one, follow_ups=())


class Shameless(Changing):
    """Attempts that failed are not recorded."""

    def change(self, one: Settlement) -> Settlement:
        return one if one.attempt is None else replace(one, attempt=replace(one.attempt, delivery=one.delivery + 50))


class Tactful(Changing):
    """The letter is not the last failure: half of the evidence was written by somebody else."""

    def change(self, one: Settlement) -> Settlement:
        if isinstance(one.decision, ToDead):
            failure = replace(one.decision.failure, cause="0000000000000000")
            return replace(one, decision=replace(one.decision, failure=failure))
        return one


class Optimist(Changing):
    """Dead is called done: the end that was told is not the end that is there."""

    def change(self, one: Settlement) -> Settlement:
        return replace(one, decision=ToDone()) if isinstance(one.decision, ToDead) else one


class Skewed(Changing):
    """Due times by the worker's own clock, which is an hour slow."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **how: Any) -> PutResult:
        return await super().put([replace(item, delay=max(0, item.delay - HOUR)) for item in items], within, **how)

    def change(self, one: Settlement) -> Settlement:
        if isinstance(one.decision, ToReady):
            return replace(one, decision=replace(one.decision, delay=max(0, one.decision.delay - HOUR)))
        return one


class Unfenced(Honest):
    """Settles whatever lease there is, whoever holds it."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        current = [(await self.store.get(one.id)).item.deliveries for one in settlements]
        forged = [replace(one, delivery=number) for one, number in zip(settlements, current, strict=True)]
        return await super().settle(forged, then)


class Hasty(Honest):
    """Rescues what it once saw leased, and does not look again whether the lease is over."""

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        seen = await self.store.find(Match("state", "=", "leased"))
        held = [item.id for item in seen if item.worker != worker]
        return await super().reclaim(worker, queues, ttl, limit, held, force=True) if held else ()


PLAYED = {each.__name__.lower(): each for each in (Honest, Forgetful, Silent, Childless, Shameless, Tactful, Optimist)}
"""In the scenario of R3."""

CONTESTS: dict[str, tuple[type[Honest], type[Honest], bool]] = {
    "fair": (Honest, Honest, True),
    "unfenced": (Unfenced, Honest, True),
    "hasty": (Honest, Hasty, False),
}
"""Between two workers: what the first goes through, what the second, and whether the lease has lapsed."""


async def delayed(place: Place) -> None:
    app = build(place, Skewed(store_from_url(place.url)), SystemClock())
    async with app:
        await Producer(app, place.log("producer")).enqueue("ok", "item", delay="30m")
        await app.run(until_idle=True)


async def judged(place: Place, bug: str) -> dict[str, dict[str, str]]:
    if bug in CONTESTS:
        of_first, of_second, lapsed = CONTESTS[bug]
        return await contest(place, of_first, of_second, lapsed=lapsed)
    playing = play(place, PLAYED[bug](store_from_url(place.url)), ITEMS) if bug in PLAYED else delayed(place)
    if bug == "silent":
        await _until_told_done("item-00", place, asyncio.create_task(playing))
    else:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await playing
    return await drain(place)


async def _until_told_done(item_id: str, place: Place, playing: asyncio.Task[None]) -> None:
    """And no longer: whoever waits for an end that was swallowed waits for its lease. An hour later it has lapsed."""

    def told() -> bool:
        return any(isinstance(record, r.Settled) and record.id == item_id for record in read_all(place.logs))

    try:
        await eventually(told, limit=PATIENCE, what=f"the end of {item_id} is told", poll=0.05)
    finally:
        playing.cancel()
        await asyncio.wait([playing])


async def main(folder: Path, store: str) -> dict[str, dict[str, dict[str, str]]]:
    bugs = (*PLAYED, "skewed", *CONTESTS)
    room = asyncio.Semaphore(AT_ONCE)

    async def look(bug: str) -> dict[str, dict[str, str]]:
        async with room:
            with fresh_store(store, folder) as url:
                place = Place(url, folder / bug)
                place.logs.mkdir()
                return await judged(place, bug)

    return dict(zip(bugs, await asyncio.gather(*map(look, bugs)), strict=True))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))  # noqa: T201 - the answer
