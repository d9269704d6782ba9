"""Replays in the background by their request id: repeated starts, undo, and their lines in the audit."""

from __future__ import annotations

import pytest

from redrive.core.acts import (
    Act,
    Amended,
    Archive,
    Change,
    Replay,
    Reserve,
)
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Dedupe, NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.select import EVERYTHING, Ids, Selection
from redrive.core.states import State
from redrive.core.verbs import (
    Entry,
    LeaseRequest,
    NewEntry,
    Settlement,
    Want,
)
from redrive.engine import replays as engine
from redrive.errors import ConfigError, Conflict, NotFound, StoreUnavailable
from redrive.office.audit import Audit
from redrive.office.recall import replayed_by
from redrive.office.replays import Replays, start
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing.conformance.kit import failure
from redrive.testing.faults import Fault, FaultyStore
from tests.engine.replay_scene import EACH_STORE, WHY, Scene, scene

__all__ = ["scene"]


class CancelledMeanwhile(FaultyStore):
    def __init__(self, store: Store, replays: Replays) -> None:
        super().__init__(store)
        self.replays = replays

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(change, Reserve):
            await self.replays.cancel("r-1", reason="the wrong letters")
        return await super().amend(selection, change, by, expect)


async def test_a_repeated_start_reserves_nothing_twice(scene: Scene) -> None:
    ids = await scene.letters(4)
    await scene.start(ids[:2], Rate(5))
    again = await start(scene.store, ids[:2], Replay(), Rate(5), Act("ada", WHY, "r-1"))
    assert (again.changed, again.already) == ((), tuple(ids[:2]))
    more = await start(scene.store, ids[2:], Replay(), Rate(5), Act("ada", WHY, "r-1"))
    assert (len(more.changed), (await scene.replays.get("r-1")).total) == (2, 4)


async def test_a_repeated_start_revives_no_cancelled_replay(scene: Scene) -> None:
    """A command starts it in parts: what was cancelled between two of them stays so."""
    ids = await scene.letters(30)
    await scene.start(ids[:20], Rate(50))
    await scene.leader.turn()
    await scene.replays.cancel("r-1", reason="the wrong letters")
    for part in (ids[:20], ids[20:]):
        with pytest.raises(Conflict, match="replay r-1 is cancelled"):
            await start(scene.store, part, Replay(), Rate(50), Act("ada", WHY, "r-1"))
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, await scene.ready()) == ("cancelled", 10, 10)
    assert len((await scene.store.amend(Ids(tuple(ids[10:])), Archive(), Act("a", "b", "c"))).changed) == 20


@EACH_STORE
async def test_a_repeated_start_keeps_a_pause_and_goes_on_with_what_was_done(scene: Scene) -> None:
    ids = await scene.letters(6)
    await scene.start(ids[:2], None)
    await scene.turns(2_000)
    await scene.start(ids[2:4], None)
    await scene.replays.pause("r-1", reason="x")
    await scene.start(ids[4:], None)
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.total, shown.sent) == ("paused", 6, 2)
    with pytest.raises(Conflict, match="is paused, with other options"):
        await start(scene.store, ids, Replay("once"), None, Act("ada", WHY, "r-1"))
    await scene.replays.resume("r-1", reason="x")
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.total, shown.sent, await scene.ready()) == ("done", 6, 6, 6)
    assert len((await scene.replays.undo("r-1", reason="x")).changed) == 6
    with pytest.raises(Conflict, match="is cancelled"):
        await start(scene.store, ids, Replay(), None, Act("ada", WHY, "r-1"))


async def test_a_replay_of_nothing_is_none_and_one_of_skipped_letters_is_done(scene: Scene) -> None:
    assert await start(scene.store, (), Replay(), None, Act("ada", WHY, "r-1")) == Amended()
    assert await scene.replays.list() == ()
    done = await start(scene.store, ["i-none"], Replay(), None, Act("ada", WHY, "r-1"))
    assert [one.code for one in done.skipped] == ["missing"]
    assert [(one.state, one.total) for one in await scene.replays.list()] == [("done", 0)]
    await scene.start(await scene.letters(2), None)
    await scene.turns(2_000)
    assert ((await scene.replays.get("r-1")).sent, await scene.ready()) == (2, 2)


async def test_an_id_that_no_replay_can_have_leaves_none(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="request_id: must have 1 to 128 characters, not 129"):
        await start(scene.store, await scene.letters(1), Replay(), None, Act("ada", WHY, "r" * 129))
    assert await scene.replays.list() == ()


async def test_a_start_that_was_cut_off_sends_what_it_has_reserved(scene: Scene) -> None:
    ids = await scene.letters(4)
    store = FaultyStore(scene.store)
    store.at("write_documents", 2, Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await start(store, ids, Replay(), Rate(50), Act("ada", WHY, "r-1"))
    assert (await scene.replays.get("r-1")).state == "reserving"
    await scene.turns(engine.ABANDONED - engine.NONE)
    assert await scene.ready() == 0
    await scene.turns(3 * engine.NONE)
    shown = await scene.replays.get("r-1")
    assert (await scene.ready(), shown.state, shown.total, shown.sent) == (4, "done", 4, 4)


async def test_a_start_that_is_cancelled_meanwhile_leaves_nothing_reserved(scene: Scene) -> None:
    ids = await scene.letters(4)
    store = CancelledMeanwhile(scene.store, scene.replays)
    with pytest.raises(Conflict, match="is cancelled"):
        await start(store, ids, Replay(), Rate(50), Act("ada", WHY, "r-1"))
    assert len((await scene.store.amend(Ids(tuple(ids)), Archive(), Act("a", "b", "c"))).changed) == 4
    cancelled, started, _ = await Audit(scene.store).requests()
    assert (cancelled.act, started.request_id, started.acts) == ("replay cancel", "r-1", {"reserve": 4, "unreserve": 4})


async def test_a_repeated_act_is_done_once(scene: Scene) -> None:
    """An answer was lost, and a colleague acted before the repeat: an act counts once, also in the audit."""
    await scene.start(await scene.letters(2), Rate(5))
    for _ in range(2):
        await scene.replays.pause("r-1", reason="x", request_id="t-1")
        await scene.replays.resume("r-1", reason="x", request_id="t-1")
        await scene.replays.set_rate("r-1", "7/s", reason="x", request_id="t-1")
        shown = await scene.replays.set_rate("r-1", "9/s", reason="x", request_id="t-1")
        assert (shown.state, shown.rate) == ("running", Rate(9))
    entries = await scene.store.journal("audit", 0, 100)
    assert len([entry for entry in entries if entry.request_id == "t-1"]) == 4
    await scene.turns(2_000)
    assert (await scene.replays.pause("r-1", reason="x", request_id="t-1")).state == "done"
    first = await scene.replays.undo("r-1", reason="x", request_id="t-2")
    again = await scene.replays.undo("r-1", reason="x", request_id="t-2")
    assert (len(first.changed), again.changed, again.already) == (2, (), first.changed)


@EACH_STORE
async def test_undo_recalls_what_no_worker_has_leased(scene: Scene) -> None:
    ids = await scene.letters(30)
    await scene.start(ids, Rate(50))
    await scene.turns(400)
    (taken,) = (await scene.store.lease(LeaseRequest("w", (Want("q", 1, 60_000, 3),), "n-2"))).items
    undone = await scene.replays.undo("r-1", reason="the wrong letters")
    assert len(undone.changed) == 19
    assert [(one.id, "leased" in one.reason) for one in undone.skipped] == [(taken.id, True)]
    found = (await scene.store.find(EVERYTHING, 100)).items
    assert sum(item.state is State.DEAD for item in found) == 29
    assert {item.letter.reserved for item in found if item.letter is not None} == {""}
    assert (await scene.store.check()).findings == ()


async def test_undo_finds_what_was_sent_however_much_was_audited_since(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PAGE_LIMIT", 20)
    await scene.start(await scene.letters(30), Rate(50))
    await scene.turns(400)
    await scene.store.append([NewEntry("audit", b"{}", request_id=f"r-1.{number}") for number in range(100)])
    await scene.turns(2_000)
    undone = await scene.replays.undo("r-1", reason="the wrong letters")
    assert (len(undone.changed), await scene.ready()) == (30, 0)


async def test_undo_says_what_it_cannot_find(scene: Scene) -> None:
    await scene.start(await scene.letters(3), None)
    await scene.turns(2_000)

    class WithoutAudit(MemoryStore):
        async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
            return ()

    scene.store.__class__ = WithoutAudit
    with pytest.raises(NotFound, match=r"3 of the 3 items that replay r-1 sent cannot be found; recalled 0"):
        await scene.replays.undo("r-1", reason="the wrong letters")


async def test_a_replay_is_one_line_of_the_audit(scene: Scene) -> None:
    """Not one for each window or act, and what could not be sent is in it, too."""
    ids = await scene.letters(30)
    twins = [NewItem(one, "p", b"{}", terms=Terms(dedupe=Dedupe("d"))) for one in ("dead", "twin")]
    await scene.store.put(twins[:1])
    (given,) = (await scene.store.lease(LeaseRequest("w", (Want("p", 1, 60_000, 3),), "n-2"))).items
    await scene.store.settle([Settlement(given.id, given.deliveries, ToDead("rule", Charge.ERROR, failure()))])
    await scene.store.put(twins[1:])
    await scene.start([*ids, "dead"], Rate(50))
    await scene.turns(2_000)
    (line,) = await Audit(scene.store).requests()
    assert (line.act, line.request_id, line.count, set(line.changed)) == ("replay", "r-1", 30, set(ids))
    assert line.acts == {"replay": 30, "reserve": 31, "unreserve": 1}
    with pytest.raises(Conflict, match="'r-1' is a replay in the background") as refused:
        await replayed_by(scene.store, "r-1")
    assert "redrive replay undo r-1" in (refused.value.hint or "")


async def test_each_command_on_a_replay_is_one_line_of_the_audit(scene: Scene) -> None:
    ids = await scene.letters(30)
    await scene.start(ids, Rate(50))
    await scene.turns(400)
    await scene.replays.set_rate("r-1", "10/s", reason="gently")
    await scene.replays.pause("r-1", reason="it fails again")
    await scene.replays.undo("r-1", reason="the wrong letters")
    await scene.start(ids[:3], Rate(50), "r-2")
    await scene.replays.cancel("r-2", reason="these as well")
    lines = await Audit(scene.store).requests()
    assert [(line.act, line.count, line.acts) for line in lines] == [
        ("replay", 20, {"replay": 20, "reserve": 30}),
        ("replay set-rate 10/s", 1, {"replay set-rate 10/s": 1}),
        ("replay pause", 1, {"replay pause": 1}),
        ("replay undo", 20, {"replay undo": 1, "recall": 20, "unreserve": 10}),
        ("reserve", 3, {"reserve": 3}),
        ("replay cancel", 1, {"replay cancel": 1, "unreserve": 3}),
    ]


async def test_a_recall_finds_its_request_however_much_was_audited_since(scene: Scene) -> None:
    ids = await scene.letters(2)
    await scene.store.amend(Ids(tuple(ids)), Replay(), Act("ada", WHY, "ticket-88"))
    await scene.store.append([NewEntry("audit", b"{}")] * 10_001)
    assert await replayed_by(scene.store, "ticket-88") == tuple(ids)
