"""R16: the answer is lost after the write, at every call of every verb. Repeated: nothing doubles, nothing is lost.

First every call in turn, which a link cannot promise; then over a real link, which is cut when the server has answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.decide import ToDead
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing._relay import Answer, P, Relay
from redrive.testing.faults import Fault
from tests.support.lab import Lab
from tests.support.links.conditions import CutReply
from tests.support.links.link import Link
from tests.support.rig.size import CUT_ANSWERS, Size, proof_size
from tests.support.rig.survey import survey
from tests.support.stores import StoreUrl

UNSURE = (Fault.UNKNOWN, Fault.UNKNOWN_UNDONE)
ITEMS = 12
KINDS = 4
WRITES = ("put", "lease", "settle", "amend")
LONG = 100
"""Bytes that a commit takes, at most."""


def work(app: Redrive, backoff: str = "1s") -> Counter[str]:
    """Done, retried, dead and chained, all in one queue."""
    runs: Counter[str] = Counter()

    @app.handler("q", policy=Policy(backoff=constant(backoff), max_attempts=2), concurrency=4, lease="30s")
    async def handle(kind: str, item: Item) -> None:
        runs[item.id] += 1
        if kind == "chain":
            app.follow_up("leaf", {"of": item.id})
        if kind == "dead" or (kind == "retry" and item.errors == 0):
            raise ValueError("no")

    @app.handler("leaf", concurrency=4)
    async def leaf(of: str) -> None:
        runs[f"leaf of {of}"] += 1

    return runs


def kind_of(number: int) -> str:
    return ("ok", "retry", "dead", "chain")[number % KINDS]


async def check(store: Store, ids: list[str], runs: Counter[str], *, lives: int = 1) -> None:
    """`lives`: how often the dead have died."""
    expected = {"ok": 1, "retry": 2, "dead": 2 * lives, "chain": 1}
    for number, item_id in enumerate(ids):
        kind = kind_of(number)
        found = await store.get(item_id)
        assert found.item.state is (State.DEAD if kind == "dead" else State.DONE), kind
        assert runs[item_id] == expected[kind], kind
        assert (found.item.crashes, found.item.deliveries) == (0, expected[kind])
        errors = sum(attempt.ending is Ending.FAILED for attempt in found.attempts)
        assert (found.item.errors, errors) == {"retry": (1, 1), "dead": (2, 2 * lives)}.get(kind, (0, 0))
        assert (found.item.replays, len(found.deeds)) == ((lives - 1,) * 2 if kind == "dead" else (0, 0))
        assert runs[f"leaf of {item_id}"] == (kind == "chain")
    surveyed = await survey(store)
    assert len(surveyed.finals) == len(ids) + len(ids) // KINDS
    assert surveyed.miscounts == {}


@pytest.mark.parametrize("fault", UNSURE)
@pytest.mark.parametrize("verb", ["lease", "settle", "extend", "reclaim", "tally", "beat", "configure", "wait"])
async def test_r16_every_call_of_a_worker_in_turn(lab: Lab, verb: str, fault: Fault) -> None:
    """Every call of the verb fails once: the repeat goes through."""
    app, faulty = await lab.faulty()
    runs = work(app)
    ids = [str(await app.enqueue("q", {"kind": kind_of(number)})) for number in range(ITEMS)]
    for number in range(1, 200, 2):
        faulty.at(verb, number, fault)
    await lab.drain(app)
    await check(lab.store, ids, runs)


@pytest.mark.parametrize("fault", UNSURE)
async def test_r16_every_enqueue(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    runs = work(app)
    ids = []
    for number in range(ITEMS):
        faulty.next("put", fault)
        ids.append(str(await lab.drive(app.enqueue("q", {"kind": kind_of(number)}))))
    await lab.drain(app)
    await check(lab.store, ids, runs)


@pytest.mark.parametrize("fault", UNSURE)
async def test_r16_enqueue_many(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    runs = work(app)
    faulty.next("put", fault, fault)
    payloads = [{"kind": kind_of(number)} for number in range(ITEMS)]
    ids = [str(each) for each in await lab.drive(app.enqueue_many("q", payloads))]
    await lab.drain(app)
    await check(lab.store, ids, runs)


@pytest.mark.parametrize("fault", UNSURE)
async def test_r16_replay_with_the_same_request_id(lab: Lab, fault: Fault) -> None:
    """The caller is told that nobody knows, and repeats the request: each letter goes out once."""
    app, faulty = await lab.faulty()
    runs: Counter[str] = Counter()

    @app.handler("q", policy=Policy(max_attempts=1))
    async def fail(item: Item) -> None:
        runs[item.id] += 1
        raise ValueError("no")

    ids = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    await lab.drain(app)
    faulty.next("amend", fault)
    try:
        await lab.drive(app.letters.replay(ids, reason="again", request_id="request-1"))
    except OutcomeUnknown:
        # They may have run and died again meanwhile: the repeat must not send them out a second time.
        await lab.drain(app)
        await app.letters.replay(ids, reason="again", request_id="request-1")
    await lab.drain(app)
    for item_id in ids:
        found = await lab.history(item_id)
        assert runs[item_id] == 2
        assert found.item.replays == 1
        assert len(found.deeds) == 1


async def test_r16_all_verbs_at_once_and_again(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    runs = work(app)
    ids = []
    for number in range(ITEMS):
        faulty.next("put", Fault.UNKNOWN)
        ids.append(str(await lab.drive(app.enqueue("q", {"kind": kind_of(number)}))))
    for verb in ("lease", "settle", "reclaim", "extend", "tally"):
        for number in range(1, 200):
            if number % 3:
                faulty.at(verb, number, UNSURE[number % 2])
    await lab.drain(app)
    await check(lab.store, ids, runs)


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_r16_answers_lost_on_a_link_smoke(store_url: StoreUrl, kind: str) -> None:
    await over_a_link(store_url(kind), CUT_ANSWERS[Size.SMOKE])


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_r16_answers_lost_on_a_link(store_url: StoreUrl, kind: str) -> None:
    await over_a_link(store_url(kind), CUT_ANSWERS[proof_size()])
