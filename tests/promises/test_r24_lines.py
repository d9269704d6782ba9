"""R24, order: nobody overtakes in a line, whatever fails, dies or vanishes; and who waits for what can be seen.

With real processes and real kills: test_r24_killed.
"""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from redrive import Dead, Item, Policy, Redrive, constant
from redrive.core.acts import (
    Discard,
    Replay,
    Skip,
)
from redrive.core.item import NewItem, Terms
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.events import Reclaimed
from redrive.testing.conformance.kit import act
from tests.support.lab import Lab
from tests.support.rig.keyed import Lines, Mode, key_of
from tests.support.rig.size import Lines as Many

WORKERS = 3
ROUNDS = 3
CHANGES = (Replay, Discard, Skip)


class Run:
    """Some workers on one queue of ordered items; now and then one vanishes with what it has leased."""

    def __init__(self, lab: Lab, mode: Mode, size: Many, seed: int) -> None:
        self.lab = lab
        self.lines = Lines(mode)
        self.size = size
        self.dice = random.Random(seed)
        self._numbers = itertools.count()
        self._taken: dict[str, Item] = {}

    async def play(self) -> None:
        apps = [await self.lab.app() for _ in range(WORKERS)]
        for app in apps:
            self._handle(app)
        await self.lab.store.configure("lines", QueueChange(order=self.lines.mode))
        for _ in range(ROUNDS):
            await self._put()
            while True:
                await self._vanish()
                await self.lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)), limit="30d")
                await self._look()
                if not await self._mend():
                    break
        await self._judge()

    def _handle(self, app: Redrive) -> None:
        @app.handler("lines", policy=Policy(backoff=constant("1s"), max_crashes=1000), lease="10s", concurrency=4)
        async def handle(item: Item) -> None:
            self.lines.started(item)
            await self.lab.clock.sleep(self.dice.randrange(1, 50))
            luck = self.dice.random()
            if item.replays == 0 and luck < 0.05:
                self.lines.ended(item, "dead")
                raise Dead("as the dice say")
            if luck < 0.3:
                self.lines.ended(item, "failed")
                raise ConnectionError("not this time")
            self.lines.ended(item, "done")

        def note(event: object) -> None:
            if isinstance(event, Reclaimed) and event.id in self._taken:
                self.lines.ended(self._taken.pop(event.id), "crashed")

        app.events.subscribe(note)

    async def _put(self) -> None:
        """Of each key a share of its items, all keys mixed, in several puts."""
        count = max(1, self.size.items // ROUNDS)
        keys = [f"key-{number:03}" for number in range(self.size.keys) for _ in range(count)]
        self.dice.shuffle(keys)
        for start in range(0, len(keys), 200):
            items = [
                NewItem(f"{key}-{next(self._numbers):06}", "lines", b"{}", terms=Terms(order_key=key))
                for key in keys[start : start + 200]
            ]
            await self.lab.store.put(items)
            for item in items:
                assert item.terms is not None
                self.lines.put(item.terms.order_key, item.id)

    async def _vanish(self) -> None:
        """A worker takes some heads and is never heard of again."""
        name = f"ghost-{next(self._numbers)}"
        for item in await self.lab.ghost("lines", worker=name, ttl="5s", limit=self.dice.randrange(1, 4)):
            self.lines.started(item)
            self._taken[item.id] = item

    async def _look(self) -> None:
        """Nobody runs and nothing is due: whatever is left waits behind a letter, and says so."""
        assert not self._taken
        (row,) = (await self.lab.store.tally()).queues
        behind = self.lines.left - len(self.lines.stopped)
        kept = (behind, 0) if self.lines.mode == "block" else (0, behind)
        assert (row.ready, row.leased, row.held, row.parked) == (0, 0, *kept)
        for key, letter in self.lines.stopped.items():
            head, *followers = self.lines.waiting[key]
            assert head == letter
            for follower in followers[:3]:
                history = await self.lab.history(follower)
                assert history.blocked_by == (letter,), "what it waits for can be seen"
                assert history.item.hold == ("order" if self.lines.mode == "block" else "parked:order")

    async def _mend(self) -> bool:
        """An operator looks at the letters, and does with each what the dice say."""
        selection = And((Match("state", "=", "dead"), Match("disposition", "=", "open")))
        letters = (await self.lab.store.find(selection, 1000)).items
        for item in letters:
            key = key_of(item)
            change: Replay | Discard | Skip = self.dice.choice(CHANGES)()
            if isinstance(change, Skip) and self.lines.stopped.get(key) != item.id:
                change = Replay()
            amended = await self.lab.store.amend(Ids((item.id,)), change, act())
            assert amended.changed == (item.id,), amended
            match change:
                case Replay():
                    self.lines.replayed(key, item.id)
                case Discard():
                    self.lines.discarded(key, item.id)
                case Skip():
                    self.lines.skipped(key, item.id)
        return bool(letters)

    async def _judge(self) -> None:
        assert self.lines.overtakes == []
        (row,) = (await self.lab.store.tally()).queues
        assert (row.ready, row.leased, row.held, row.parked, row.open) == (0, 0, 0, 0, 0)
        assert row.done + row.trash == max(1, self.size.items // ROUNDS) * ROUNDS * self.size.keys
        assert self.lines.starts > row.done, "nothing ever failed: this proves little"
        assert (await self.lab.store.check()).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["block", "park", "skip"])
async def test_r24_nobody_overtakes(lab: Lab, mode: Mode) -> None:
    """More of them: proofs/test_r24_keys.py."""
    keys, items = (8, 8) if lab.kind == "memory" else (6, 6)
    await Run(lab, mode, Many(keys=keys, items=items, kills=2), seed=24).play()


async def test_r24_a_dead_head_blocks_its_key_only(lab: Lab) -> None:
    """The smallest case by hand: what is seen, and in which order it goes on."""
    app = await lab.app()
    ran: list[str] = []

    @app.handler("lines")
    async def handle(item: Item) -> None:
        ran.append(item.id)
        if item.id == "a1" and not item.replays:
            raise Dead("no such address")

    await lab.store.put([NewItem(key + n, "lines", b"{}", terms=Terms(order_key=key)) for n in "123" for key in "ab"])
    await lab.drain(app)
    assert sorted(ran) == ["a1", "b1", "b2", "b3"]
    assert [one for one in ran if one[0] == "b"] == ["b1", "b2", "b3"]
    assert [(await lab.history(key)).blocked_by for key in ("a2", "a3")] == [("a1",), ("a1",)]
    ran.clear()
    await lab.store.amend(Ids(("a1",)), Replay(), act())
    await lab.drain(app)
    assert ran == ["a1", "a2", "a3"]
    assert (await lab.item("a3")).state is State.DONE


# --- the model has teeth ----------------------------------------------------------------------------------------------


def item(item_id: str, gap: str = "") -> Item:
    return Item(item_id, "lines", b"", 0, State.LEASED, 0, 0, 0, gap=gap, terms=Terms(order_key="k"))


def line(mode: Mode) -> Lines:
    made = Lines(mode)
    for item_id in ("a", "b", "c"):
        made.put("k", item_id)
    return made


def test_whoever_runs_out_of_turn_is_seen() -> None:
    lines = line("block")
    lines.started(item("b"))
    assert lines.overtakes == ["b ran, and ['a'] is the next of k"]


def test_two_of_a_line_at_once_are_seen() -> None:
    lines = line("block")
    lines.started(item("a"))
    lines.started(item("a"))
    assert lines.overtakes == ["a ran while another of k did"]


@pytest.mark.parametrize("mode", ["block", "park"])
def test_whoever_passes_a_dead_head_is_seen(mode: Mode) -> None:
    lines = line(mode)
    lines.started(item("a"))
    lines.ended(item("a"), "dead")
    lines.replayed("k", "a")
    lines.started(item("a"))
    assert lines.overtakes == []
    lines.ended(item("a"), "dead")
    lines.started(item("b"))
    assert len(lines.overtakes) == 1


def test_a_gap_that_is_not_told_is_seen() -> None:
    lines = line("skip")
    lines.started(item("a"))
    lines.ended(item("a"), "dead")
    lines.started(item("b"))
    assert lines.overtakes == ["b has the gap '', and was let past 'a'"]
    lines.ended(item("b"), "done")
    lines.started(item("c", gap="a"))
    assert len(lines.overtakes) == 1
