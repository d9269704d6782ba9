"""R16 unknown outcome. Answers are lost on the link after the write; repeated, nothing doubles and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from redrive import Redrive
from redrive.core.decide import ToDead
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing._relay import Answer, P, Relay
from tests.promises.test_r16_unknown import KINDS, check, kind_of, work
from tests.support.links.conditions import CutReply
from tests.support.links.link import Link
from tests.support.rig.size import CUT_ANSWERS, proof_size
from tests.support.stores import StoreUrl

SIZE = f"{CUT_ANSWERS[proof_size()]} lost answers"

WRITES = ("put", "lease", "settle", "amend")
LONG = 100
"""Bytes that a commit takes, at most."""


# -- over a link -----------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Cutting(Relay):
    """Loses the answer to every other call that writes: to a commit, or to the request it made last the time before.

    `unsure` counts the calls of which nobody knew the outcome, by verb; `letter` are settles that made one.
    """

    def __init__(self, store: Store, link: Link) -> None:
        super().__init__(store)
        self.unsure: Counter[str] = Counter()
        self._link = link
        self._spared: set[str] = set()
        self._requests = dict.fromkeys(WRITES, 1)

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        name = verb.__name__
        if name not in WRITES:
            return await verb(*args, **kwargs)
        self._spared ^= {name}
        lost = self._requests[name] if name in self._spared else -1
        made = 0

        def is_lost(sent: bytes) -> bool:
            nonlocal made
            made += 1
            return made == lost or (lost > 0 and b"commit" in sent[-LONG:])

        # Not in the loop: the link has a thread of its own, which takes its time to answer.
        await asyncio.to_thread(self._link.set, CutReply(is_lost, times=1))
        try:
            answer = await verb(*args, **kwargs)
            self._requests[name] = max(1, made)
        except OutcomeUnknown:
            self.unsure[name] += 1
            settlements = args[0] if name == "settle" else ()
            assert isinstance(settlements, Sequence)
            self.unsure["letter"] += any(isinstance(one.decision, ToDead) for one in settlements)
            raise
        finally:
            await asyncio.to_thread(self._link.heal)
        return answer


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """As a careful caller does: the same again, until there is an answer."""
    while True:
        try:
            return await act()
        except (OutcomeUnknown, StoreUnavailable):
            continue


async def over_a_link(url: str, cuts: int) -> None:
    """All is as if no answer had been lost."""
    ids: list[str] = []
    with Link.to(url) as link:
        cutting = Cutting(store_from_url(link.through(url)), link)
        app = Redrive(cutting, log=False)
        runs = work(app, "10ms")
        async with app:
            while cutting.unsure.total() < cuts or not all(cutting.unsure[verb] for verb in (*WRITES, "letter")):
                batch = [f"item-{len(ids) + number:05}" for number in range(KINDS)]
                ids += batch
                await live_twice(app, batch)
        print(f"{link.counts.cuts} answers lost: {dict(cutting.unsure)}")  # noqa: T201 - shown by -s
    store = await store_from_url(url).open()
    try:
        await check(store, ids, runs, lives=2)
    finally:
        await store.close()


async def live_twice(app: Redrive, batch: list[str]) -> None:
    """Enqueue, work, replay the letters and work again; each request is made until it is answered, and then again."""
    for number, item_id in enumerate(batch):
        payload = {"kind": kind_of(number)}
        for _ in range(2):
            await insist(lambda: app.enqueue("q", payload, id=item_id))  # noqa: B023 - awaited here
    await insist(lambda: app.run(until_idle=True))
    letters = [item_id for number, item_id in enumerate(batch) if kind_of(number) == "dead"]
    for _ in range(2):
        for item_id in letters:
            request = f"replay of {item_id}"
            await insist(lambda: app.letters.replay(item_id, reason="again", request_id=request))  # noqa: B023 - awaited here
        await insist(lambda: app.run(until_idle=True))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_r16_answers_lost_on_a_link(store_url: StoreUrl, kind: str) -> None:
    await over_a_link(store_url(kind), CUT_ANSWERS[proof_size()])
