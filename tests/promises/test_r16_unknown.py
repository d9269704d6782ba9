"""R16: the answer is lost after the write, at every call of every verb. Repeated: nothing doubles, nothing is lost.

First every call in turn, which a link cannot promise; then over a real link, which is cut when the server has answered.
"""

from __future__ import annotations

from collections import Counter

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.errors import OutcomeUnknown
from redrive.stores.base import Store
from redrive.testing.faults import Fault, FaultyStore
from tests.support.lab import Lab
from tests.support.links.claims import Round
from tests.support.rig.survey import survey

UNSURE = (Fault.UNKNOWN, Fault.UNKNOWN_UNDONE)
ITEMS = 12
KINDS = 4


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


@pytest.mark.parametrize("fault", UNSURE)
async def test_r16_every_write_of_a_store(lab: Lab, fault: Fault) -> None:
    """Verb by verb and act by act: repeated, it is done, and done once."""
    game, faulty = Round("round", lab.shared), FaultyStore(lab.shared)
    await game.prepare()
    calls = game.calls(faulty)
    for verb, was_done in (await game.happened()).items():
        assert not was_done, verb
        faulty.next(verb.partition("-")[0], fault)
        lab.clock.advance("2ms")  # the one that was elected to see whether it can be leads no longer
        with pytest.raises(OutcomeUnknown):
            await calls[verb]()
        assert (await game.happened())[verb] == (fault is Fault.UNKNOWN), verb
        lab.clock.advance("2ms")
        await calls[verb]()
    assert all((await game.happened()).values())
    assert await game.doubles() == {}


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
