"""Replays in the background that judge or change payloads: windows, pauses, and functions that fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from redrive.core.acts import (
    Act,
    Archive,
    Replay,
)
from redrive.core.item import History, Item, Letter, Millis
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, QueueChange, Want
from redrive.engine import replays as engine
from redrive.engine.receiver_tasks import ReceiverTasks
from redrive.engine.replays import ByPayload
from redrive.errors import ConfigError, StoreCorrupt, StoreUnavailable
from redrive.events import Events
from redrive.office.replay.functions import named
from redrive.stores.keyring import Keyring
from redrive.testing.faults import Fault, FaultyStore
from tests.engine.replay_scene import EACH_STORE, Scene, scene

__all__ = ["scene"]


def new_form(payload: Any) -> Any:
    if payload["n"] == 1:
        raise LookupError("no such order")
    if payload["n"] == 2:
        raise SystemExit(3)
    return {"form": 2, **payload}


def nothing(payload: Any) -> None:
    pass


NEW_FORM = ByPayload(transform=f"{__name__}:new_form")
NUMBERS = '{"n": %n, "order": {"id": %n}}'


async def letter(scene: Scene, item_id: str) -> Letter:
    found = (await scene.store.get(item_id)).item.letter
    assert found is not None
    return found


@EACH_STORE
async def test_new_items_come_window_by_window_and_a_cancel_keeps_the_letters(scene: Scene) -> None:
    ids = await scene.letters(30, payload=NUMBERS)
    await scene.start(ids, Rate(50), by_payload=NEW_FORM)
    assert await scene.ready() == 0
    await scene.leader.turn()
    assert await scene.ready() == 8
    for place, error in ((1, "builtins.LookupError: no such order"), (2, "builtins.SystemExit: 3")):
        assert (await letter(scene, ids[place])).reserved == ""
        last = (await scene.store.get(ids[place])).deeds[-1]
        assert last.reason == f"not sent: its payload could not be used: {error}"
    await scene.replays.pause("r-1", reason="it fails again")
    await scene.turns(10_000)
    assert await scene.ready() == 8
    await scene.replays.set_rate("r-1", "25/s", reason="gently")
    await scene.replays.resume("r-1", reason="fixed")
    await scene.leader.turn()
    assert await scene.ready() == 13
    cancelled = await scene.replays.cancel("r-1", reason="the wrong letters")
    assert (cancelled.sent, cancelled.skipped, cancelled.total, cancelled.left) == (13, 2, 30, 0), "the others are free"
    await scene.turns(2_000)
    assert await scene.ready() == 13
    assert len((await scene.store.amend(Ids(tuple(ids[15:])), Archive(), Act("a", "b", "c"))).changed) == 15
    assert (await scene.store.check()).findings == ()


@EACH_STORE
async def test_undo_makes_letters_of_new_items_that_no_worker_has_leased(scene: Scene) -> None:
    await scene.start((await scene.letters(56, payload=NUMBERS))[3:], None, by_payload=NEW_FORM)
    await scene.leader.turn()
    assert await scene.ready() == engine.BY_PAYLOAD
    await scene.turns(2_000)
    (taken,) = (await scene.store.lease(LeaseRequest("w", (Want("q", 1, 60_000, 3),), "n-2"))).items
    undone = await scene.replays.undo("r-1", reason="the wrong letters", request_id="t-1")
    assert ([(one.id, one.code) for one in undone.skipped], len(undone.changed)) == ([(taken.id, "leased_since")], 52)
    assert {(await letter(scene, one)).reason for one in undone.changed} == {"expired"}
    again = await scene.replays.undo("r-1", reason="the wrong letters", request_id="t-1")
    assert (again.changed, sorted(again.already)) == ((), sorted(undone.changed))


@EACH_STORE
async def test_one_letter_of_each_key_is_sent_and_the_others_are_free(scene: Scene) -> None:
    ids = await scene.letters(6, payload='{"order": {"id": "%n"}}')
    await scene.start(ids, Rate(50), by_payload=ByPayload(dedupe_function=f"{__name__}:half"))
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, shown.skipped, await scene.ready()) == ("done", 3, 3, 3)
    assert [(await scene.store.get(one)).item.state for one in ids] == [State.READY, State.DEAD] * 3
    history = await scene.store.get(ids[1])
    assert history.deeds[-1].reason.startswith(f"not sent: {ids[0]}, with the same dedupe key, was replayed to q")
    assert len((await scene.replays.undo("r-1", reason="x")).changed) == 3


def half(payload: Any) -> int:
    return int(payload["order"]["id"]) // 2


@EACH_STORE
async def test_a_leader_that_dies_with_letters_in_hand_loses_and_doubles_none(scene: Scene) -> None:
    ids = (await scene.letters(9, payload=NUMBERS))[3:]
    await scene.start(ids, Rate(10), by_payload=ByPayload("order.id", transform=NEW_FORM.transform))
    store = FaultyStore(scene.store)
    store.at("settle_letters", 1, Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await scene.another("w-1", store).turn()
    scene.clock.advance(engine.TERM + 1)
    second = scene.another("w-2")
    await scene.turns(2_000, second)
    assert (await scene.ready(), (await scene.replays.get("r-1")).skipped) == (0, 0), "the first may still send them"
    scene.clock.advance(60_000)
    await scene.turns(5_000, second)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, shown.skipped, await scene.ready()) == ("done", 6, 0, 6)


async def test_what_its_leader_has_in_hand_when_it_is_cancelled_stays_a_letter(scene: Scene) -> None:
    ids = (await scene.letters(5, payload=NUMBERS))[3:]
    await scene.start(ids, Rate(50), by_payload=NEW_FORM)

    class CancelledAfter(FaultyStore):
        async def lease_letters(
            self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
        ) -> tuple[Item, ...]:
            given = await super().lease_letters(ids, worker, ttl, early=early, reserved=reserved)
            await scene.replays.cancel("r-1", reason="the wrong letters")
            return given

    await scene.another("w-1", CancelledAfter(scene.store)).turn()
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, await scene.ready()) == ("cancelled", 0, 0)
    assert len((await scene.store.amend(Ids(tuple(ids)), Archive(), Act("a", "b", "c"))).changed) == 2


@pytest.mark.parametrize(
    ("transform", "problem"),
    [
        ("nowhere:f", "nowhere:f cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("exits:f", "exits:f cannot be imported: SystemExit: 3"),
        (f"{__name__}:absent", "cannot be imported: AttributeError"),
        (f"{__name__}:nothing", "transform: the function returned None for i-0000"),
    ],
)
async def test_a_function_that_cannot_be_used_pauses_the_replay(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, transform: str, problem: str
) -> None:
    """No letter is skipped, and after a repair it goes on."""

    def find(self: object, name: str, *_: object) -> None:
        if name == "exits":
            raise SystemExit(3)

    monkeypatch.setattr(sys, "meta_path", [type("Exits", (), {"find_spec": find})(), *sys.meta_path])
    ids = await scene.letters(3, payload=NUMBERS)
    await scene.start(ids, Rate(50), by_payload=ByPayload(transform=transform))
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.left, problem in shown.problem) == ("paused", 3, True), shown.problem
    assert {(await letter(scene, one)).reserved for one in ids} == {"r-1"}
    entry = (await scene.store.journal("audit", 0, 100))[-1]
    assert (entry.actor, entry.reason) == ("w-1", shown.problem)
    module, _, function = transform.partition(":")
    repaired = ModuleType(module)
    setattr(repaired, function, dict)
    monkeypatch.setitem(sys.modules, module, repaired)
    assert (await scene.replays.resume("r-1", reason="deployed")).problem == ""
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.sent, await scene.ready()) == ("done", 3, 3)


async def test_a_damaged_store_pauses_the_replay_and_not_the_worker(scene: Scene) -> None:
    class Damaged(FaultyStore):
        async def get(self, item_id: str) -> History:
            raise StoreCorrupt(f"item {item_id} cannot be read")

    await scene.start(await scene.letters(1, payload=NUMBERS), None, by_payload=ByPayload("n"))
    await scene.another("w-1", Damaged(scene.store)).turn()
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.problem) == ("paused", "w-1 cannot send it: StoreCorrupt: item i-0000 cannot be read")


async def test_a_payload_for_which_its_process_has_no_key_pauses_the_replay(scene: Scene) -> None:
    keys = Keyring({"k1": bytes(32)}, current="k1")
    scene.store.use_keys(keys)
    await scene.store.configure("q", QueueChange(encrypt=True))
    await scene.start(await scene.letters(2, payload=NUMBERS), None, by_payload=ByPayload("n"))
    scene.store.use_keys(None)
    await scene.turns(2_000)
    shown = await scene.replays.get("r-1")
    assert (shown.state, shown.left, "k1" in shown.problem) == ("paused", 2, True), shown.problem
    scene.store.use_keys(keys)
    await scene.replays.resume("r-1", reason="the key is there")
    await scene.turns(2_000)
    assert await scene.ready() == 2


async def test_a_process_that_only_receives_leaves_them_to_others_unless_it_can_send_them(scene: Scene) -> None:
    await scene.start(await scene.letters(1, payload='{"n": 7}'), None, by_payload=NEW_FORM)
    tasks = ReceiverTasks("w-9", scene.store, Events(), scene.clock)
    scene.clock.advance(engine.NONE)
    tasks.received("q")
    await tasks.rest()
    await tasks.close()
    assert await scene.ready() == 0
    await scene.turns(2_000)
    assert await scene.ready() == 1


class Fixer:
    def fix(self, payload: Any) -> Any:
        return payload


async def fetch(payload: Any) -> Any:
    return payload


def test_functions_have_names_that_another_process_can_import() -> None:
    assert named("order.id", new_form, Replay()) == ByPayload("order.id", transform=f"{__name__}:new_form")
    assert named(half, "repairs:new_form", Replay()) == ByPayload("", f"{__name__}:half", "repairs:new_form")
    for function in (lambda payload: payload, Fixer().fix, {"x": 1}.get):
        with pytest.raises(ConfigError, match=r"transform: .*cannot be imported by a worker"):
            named(None, function, Replay())
    for wrong in (fetch, 7, "repairs.new_form"):
        with pytest.raises(ConfigError, match="transform"):
            named(None, wrong, Replay())  # type: ignore[arg-type] # refused
