"""Replays in the background: windows of 200 ms, and what an operator changes acts within one of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Archive,
    Change,
    Replay,
)
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids, Selection
from redrive.core.verbs import (
    Document,
    DocumentWrite,
    NewEntry,
)
from redrive.engine import replays as engine
from redrive.engine.receiver_tasks import ReceiverTasks
from redrive.engine.replays import ReplayLeader
from redrive.errors import Conflict, NotFound, StoreUnavailable
from redrive.events import Events
from redrive.office.replays import start
from redrive.stores.memory import MemoryStore
from redrive.testing.faults import Fault, FaultyStore
from tests.engine.replay_scene import EACH_STORE, WHY, Scene, scene

__all__ = ["scene"]


@EACH_STORE
async def test_letters_stay_letters_until_their_window_comes(scene: Scene) -> None:
    ids = await scene.letters(30)
    await scene.start(ids, Rate(50))
    assert await scene.ready() == 0
    sent = []
    for _ in range(3):
        await scene.leader.turn()
        sent.append(await scene.ready())
        await scene.leader.turn()
        assert await scene.ready() == sent[-1], "nothing more before the next window"
        scene.clock.advance(200)
    assert sent == [10, 20, 30]
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.total, shown.sent, shown.left) == ("done", 30, 30, 0)
    assert await scene.leader.turn() == engine.NONE


async def test_a_slow_rate_sends_one_when_its_time_has_come(scene: Scene) -> None:
    await scene.start(await scene.letters(3), Rate(1, 60_000))
    await scene.turns(59_000)
    assert await scene.ready() == 1
    await scene.turns(2_000)
    assert await scene.ready() == 2
    await scene.turns(62_000)
    assert await scene.ready() == 3
    assert (await scene.replays.get("r-1")).state == "done", "who waits for the end need not wait for another window"


async def test_without_a_rate_it_goes_as_fast_as_the_store_takes_them(scene: Scene) -> None:
    await scene.start(await scene.letters(1_200), None)
    await scene.turns(3)
    assert await scene.ready() == 1_200


@EACH_STORE
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_pause_lets_no_more_than_a_window_through(scene: Scene, restarted: bool) -> None:
    """Whichever worker leads afterwards."""
    await scene.start(await scene.letters(100), Rate(50))
    await scene.turns(400)
    before = await scene.ready()
    await scene.replays.pause("r-1", reason="it fails again")
    scene.clock.advance(engine.TERM + 1)
    await scene.turns(10_000, scene.another("w-2") if restarted else None)
    assert await scene.ready() - before <= 10
    await scene.replays.resume("r-1", reason="fixed")
    after = await scene.ready()
    await scene.turns(1_000, scene.another("w-3") if restarted else None)
    assert 0 < await scene.ready() - after <= 60


async def test_after_a_standstill_it_does_not_make_up_for_more_than_a_window(scene: Scene) -> None:
    await scene.start(await scene.letters(100), Rate(50))
    await scene.leader.turn()
    scene.clock.advance(60_000)
    await scene.leader.turn()
    await scene.leader.turn()
    await scene.leader.turn()
    assert await scene.ready() <= 30


async def test_a_leader_that_reads_no_document_before_a_window_would_be_found(scene: Scene) -> None:
    """The planted bug: what it has read once is sent to the end, and no version is compared, whatever an operator says
    meanwhile.
    """
    await scene.start(await scene.letters(100), Rate(50))
    documents = await scene.store.documents(engine.ACTIVE)
    before = await scene.ready()
    await scene.replays.pause("r-1", reason="it fails again")

    class OfThePast(MemoryStore):
        async def documents(self, kind: str) -> tuple[Document, ...]:
            return documents

        async def write_documents(
            self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
        ) -> tuple[Document, ...]:
            return await super().write_documents([structs.replace(write, expect=None) for write in writes], audit)

    scene.store.__class__ = OfThePast
    await scene.turns(1_000)
    assert await scene.ready() - before > 10


async def test_pauses_and_resumes_are_no_way_to_more_than_the_rate(scene: Scene) -> None:
    await scene.start(await scene.letters(100), Rate(50))
    for _ in range(5):
        await scene.leader.turn()
        await scene.replays.pause("r-1", reason="x")
        await scene.leader.turn()
        await scene.replays.resume("r-1", reason="x")
    assert await scene.ready() == 10


async def test_a_leader_that_ends_leaves_the_rest_to_another_at_once(scene: Scene) -> None:
    await scene.start(await scene.letters(20), Rate(50))
    await scene.leader.turn()
    await scene.leader.resign()
    scene.clock.advance(200)
    await scene.another("w-2").turn()
    assert await scene.ready() == 20


async def test_without_replays_nothing_is_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.store, "elect", None)
    assert await scene.leader.turn() == engine.NONE
    await scene.start(await scene.letters(1), Rate(50))
    await scene.replays.pause("r-1", reason="x")
    assert await scene.leader.turn() == engine.IDLE


async def test_a_process_that_only_receives_sends_them_too(scene: Scene) -> None:
    await scene.start(await scene.letters(30), Rate(50))
    tasks = ReceiverTasks("w-9", scene.store, Events(), scene.clock)
    for _ in range(20):
        tasks.received("q")
        await tasks.rest()
        scene.clock.advance(200)
    assert await scene.ready() == 30
    await tasks.close()
    assert (await scene.replays.get("r-1")).state == "done"


@EACH_STORE
async def test_restarts_are_no_way_to_more_than_the_rate(scene: Scene) -> None:
    """Whichever process leads: when the next window may be sent stands in the store."""
    await scene.start(await scene.letters(20), Rate(1, 3_600_000))
    for number in range(4):
        leader = scene.another(f"w-{number}")
        await scene.turns(10_000, leader)
        await leader.resign()
    assert (await scene.ready(), (await scene.replays.get("r-1")).sent) == (1, 1)
    scene.clock.advance(3_600_000)
    await scene.turns(10_000)
    assert await scene.ready() == 2
    await scene.replays.set_rate("r-1", "10/s", reason="faster")
    await scene.turns(1_000)
    assert 8 <= await scene.ready() <= 14, "not in an hour"


@EACH_STORE
async def test_another_worker_goes_on_with_what_is_left(scene: Scene) -> None:
    ids = await scene.letters(20)
    await scene.start(ids, Rate(50))
    await scene.leader.turn()
    second = scene.another("w-2")
    scene.clock.advance(300)
    assert await second.turn() == engine.NONE, "one leads"
    scene.clock.advance(engine.TERM + 1)
    await scene.turns(2_000, second)
    assert await scene.ready() == 20
    histories = [await scene.store.get(one) for one in ids]
    assert all([deed.change for deed in history.deeds] == ["reserve", "replay"] for history in histories)
    assert (await scene.replays.get("r-1")).state == "done"


@EACH_STORE
async def test_cancel_frees_what_is_left(scene: Scene) -> None:
    ids = await scene.letters(30)
    await scene.start(ids, Rate(50))
    await scene.leader.turn()
    cancelled = await scene.replays.cancel("r-1", reason="the wrong letters")
    assert (cancelled.state, cancelled.total, cancelled.sent, cancelled.left) == ("cancelled", 30, 10, 0)
    await scene.turns(2_000)
    assert await scene.ready() == 10
    assert len((await scene.store.amend(Ids(tuple(ids[10:])), Archive(), Act("a", "b", "c"))).changed) == 20
    with pytest.raises(Conflict, match="is cancelled"):
        await scene.replays.resume("r-1", reason="x")
    assert [one.state for one in await scene.replays.list()] == ["cancelled"]


@EACH_STORE
async def test_a_window_that_was_not_counted_is_counted_at_the_end(scene: Scene) -> None:
    """Its letter could not be sent, and its leader died before it counted."""
    ids = await scene.letters(1, Terms(dedupe=Dedupe("d")))
    await scene.store.put([NewItem("twin", "q", b"{}", terms=Terms(dedupe=Dedupe("d")))])
    await start(scene.store, ids, Replay(), Rate(50), Act("ada", WHY, "r-1"))
    store = FaultyStore(scene.store)
    store.at("write_documents", 2, Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await ReplayLeader(store, "w-1", events=Events(), clock=scene.clock).turn()
    scene.clock.advance(engine.TERM + 1)
    await scene.turns(2_000, scene.another("w-2"))
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, shown.skipped, shown.total) == ("done", 0, 1, 1)


async def test_a_window_in_which_it_is_cancelled_is_counted(scene: Scene) -> None:
    await scene.start(await scene.letters(30), Rate(50))

    class CancelledAfter(FaultyStore):
        async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
            done = await super().amend(selection, change, by, expect)
            await scene.replays.cancel("r-1", reason="the wrong letters")
            return done

    await ReplayLeader(CancelledAfter(scene.store), "w-1", events=Events(), clock=scene.clock).turn()
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.total, shown.sent, shown.left) == ("cancelled", 30, 10, 0)


@EACH_STORE
async def test_what_cannot_be_sent_is_free_again_and_says_why(scene: Scene) -> None:
    ids = await scene.letters(1, Terms(dedupe=Dedupe("d")))
    await scene.store.put([NewItem("twin", "q", b"{}", terms=Terms(dedupe=Dedupe("d")))])
    await scene.start(ids, Rate(50))
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, shown.skipped, shown.left) == ("done", 0, 1, 0)
    history = await scene.store.get(ids[0])
    assert history.item.letter is not None
    assert history.item.letter.reserved == ""
    assert history.deeds[-1].reason == "not sent: its dedupe key is held by twin"


async def test_a_new_rate_holds_from_the_next_window_on(scene: Scene) -> None:
    await scene.start(await scene.letters(300), Rate(5))
    await scene.leader.turn()
    assert await scene.ready() == 1
    await scene.replays.set_rate("r-1", "500/s", reason="it is fine")
    await scene.turns(400)
    assert 100 <= await scene.ready() <= 201


async def test_a_worker_waits_until_idle_for_replays_of_its_queues_alone(scene: Scene) -> None:
    one, two = await scene.letters(2)
    await scene.start([one], Rate(1, 60_000))
    assert await engine.has_running(scene.store, ["q"])
    assert not await engine.has_running(scene.store, ["other", "q:*"])
    await start(scene.store, [two], Replay(queue="q:x"), Rate(5), Act("ada", WHY, "r-2"))
    assert await engine.has_running(scene.store, ["q:*"])
    await scene.replays.cancel("r-2", reason="x")
    await scene.replays.pause("r-1", reason="x")
    assert not await engine.has_running(scene.store, ["q"])


async def test_an_unknown_replay_is_not_found(scene: Scene) -> None:
    for act in (
        scene.replays.get("r-9"),
        scene.replays.cancel("r-9", reason="x"),
        scene.replays.pause("r-9", reason="x"),
    ):
        with pytest.raises(NotFound, match="no replay 'r-9'"):
            await act


async def test_ended_replays_are_forgotten_in_the_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ENDED_KEPT", 2)
    ids = await scene.letters(3)
    for number, one in enumerate(ids):
        await scene.start([one], None, f"r-{number}")
        await scene.turns(2_000)
    assert [one.id for one in await scene.replays.list()] == ["r-2", "r-1"]
