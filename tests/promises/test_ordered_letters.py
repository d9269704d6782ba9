"""Dead letters keep their order: an endpoint refuses its third event for good; what becomes of the seven behind it?

The queue says which of the three it is: they wait as backlog (block), aside (park), or go on past the gap (skip).
"""

from __future__ import annotations

import pytest

from redrive import Dead, Item, Redrive
from redrive.core.acts import Discard, Replay
from redrive.core.item import NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import act
from tests.support.lab import Lab
from tests.support.rig.keyed import Mode

BAD = "E-03"
BEHIND = [f"E-{number:02}" for number in range(4, 11)]


class Receiver:
    """What arrived, and with which gap. The third event of endpoint E is refused until somebody mends it."""

    def __init__(self, app: Redrive) -> None:
        self.mended = False
        self.log: list[str] = []
        self.gaps: dict[str, str] = {}

        @app.handler("hooks", concurrency=4)
        async def send(item: Item) -> None:
            if item.id == BAD and not self.mended:
                raise Dead("400 Bad Request")
            self.log.append(item.id)
            self.gaps[item.id] = item.gap

    def of(self, endpoint: str) -> list[str]:
        return [item_id for item_id in self.log if item_id.startswith(endpoint)]


async def third_is_dead(lab: Lab, mode: Mode) -> tuple[Redrive, Receiver]:
    app = await lab.app()
    receiver = Receiver(app)
    await lab.store.configure("hooks", QueueChange(order=mode))
    for number in range(1, 11):
        await lab.store.put(
            [NewItem(f"{key}-{number:02}", "hooks", b"null", terms=Terms(order_key=key)) for key in "EF"]
        )
    await lab.drain(app)
    assert (await lab.item(BAD)).state is State.DEAD
    assert receiver.of("F") == [f"F-{number:02}" for number in range(1, 11)], "another endpoint is not concerned"
    return app, receiver


async def test_gap10_parked_behind_a_dead_letter_and_on_in_order_when_it_is_replayed(lab: Lab) -> None:
    app, receiver = await third_is_dead(lab, "park")
    assert receiver.of("E") == ["E-01", "E-02"]
    (row,) = (await lab.store.tally()).queues
    assert (row.parked, row.held, row.ready, row.oldest_due) == (7, 0, 0, None), "parked items are no backlog"
    for item_id in BEHIND:
        history = await lab.history(item_id)
        assert (history.item.hold, history.blocked_by) == ("parked:order", (BAD,))
        assert history.item.attempt == 0
    receiver.mended = True
    await lab.store.amend(Ids((BAD,)), Replay(), act())
    await lab.drain(app)
    assert receiver.of("E") == ["E-01", "E-02", BAD, *BEHIND]


async def test_gap10_blocked_behind_a_dead_letter_is_backlog_that_says_why(lab: Lab) -> None:
    app, receiver = await third_is_dead(lab, "block")
    (row,) = (await lab.store.tally()).queues
    assert (row.held, row.parked, row.ready) == (7, 0, 0)
    receiver.mended = True
    await lab.store.amend(Ids((BAD,)), Replay(), act())
    await lab.drain(app)
    assert receiver.of("E") == ["E-01", "E-02", BAD, *BEHIND]


@pytest.mark.parametrize("mode", ["block", "park"])
async def test_gap10_discarding_the_head_lets_the_others_go_on_without_a_gap(lab: Lab, mode: Mode) -> None:
    app, receiver = await third_is_dead(lab, mode)
    await lab.store.amend(Ids((BAD,)), Discard(), act())
    await lab.drain(app)
    assert receiver.of("E") == ["E-01", "E-02", *BEHIND]
    assert set(receiver.gaps.values()) == {""}


async def test_gap10_skipped_over_with_a_gap_that_names_the_letter_and_replayed_to_the_tail(lab: Lab) -> None:
    app, receiver = await third_is_dead(lab, "skip")
    assert receiver.of("E") == ["E-01", "E-02", *BEHIND]
    assert {receiver.gaps[item_id] for item_id in BEHIND} == {BAD}
    assert {receiver.gaps[item_id] for item_id in ("E-01", "E-02")} == {""}
    receiver.mended = True
    await lab.store.amend(Ids((BAD,)), Replay(), act())
    await lab.drain(app)
    assert receiver.of("E") == ["E-01", "E-02", *BEHIND, BAD]
