"""Planted bugs: the scenario on a store that cheats, judged by the same checker.

    python -m tests.support.rig.plant <folder> <bug>

Prints the faults that the checker names. A rig that finds nothing here would find nothing anywhere.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from redrive.core.decide import ToDead, ToDone
from redrive.core.item import NewItem
from redrive.core.verbs import Answer, LeaseRequest, PutResult, Settled, Settlement, Verdict
from redrive.stores.sqlite import SqliteStore
from redrive.testing._relay import Answer as Any_
from redrive.testing._relay import P, Relay
from tests.support.rig.scenario import Place, drain, play


class Honest(Relay):
    """Nothing planted: the checker must stay silent."""

    async def relay(self, verb: Callable[P, Awaitable[Any_]], *args: P.args, **kwargs: P.kwargs) -> Any_:
        return await verb(*args, **kwargs)


class Forgetful(Honest):
    """Accepts some items and writes nothing: an answer before the commit."""

    async def put(self, items: Sequence[NewItem]) -> PutResult:
        if items[0].id == "item-03":
            return PutResult(tuple(item.id for item in items))
        return await super().put(items)


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


BUGS: dict[str, type[Honest]] = {
    each.__name__.lower(): each for each in (Honest, Forgetful, Silent, Childless, Shameless, Tactful, Optimist)
}


async def main(folder: Path, bug: str) -> dict[str, dict[str, str]]:
    place = Place(folder / "plant.db", folder / "logs")
    place.logs.mkdir(parents=True)
    try:
        # Whoever waits for an end that was swallowed waits for its lease; an hour later it has lapsed.
        async with asyncio.timeout(1.5):
            await play(place, BUGS[bug](SqliteStore(place.database)), 16)
    except TimeoutError:
        pass
    return await drain(place)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))  # noqa: T201 - the answer
