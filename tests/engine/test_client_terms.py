"""What enqueue can be asked for: it arrives in the store as asked, or is refused by the name of the parameter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive import Policy, Redrive
from redrive.core.item import Dedupe, Priority, Terms
from redrive.core.states import State
from redrive.errors import BadDependency, BadDuration, ConfigError, QueueFull
from redrive.events import Enqueued
from redrive.testing.faults import Fault
from tests.support.lab import Lab, Seen


async def _nothing() -> None:
    return


async def test_an_item_without_wishes_has_no_terms(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    (many,) = await app.enqueue_many("q", [1], order_key=lambda _: None)
    for each in (await app.enqueue("q"), many):
        item = await app.get(each)
        assert (item.terms, item.priority, item.hold) == (None, Priority.NORMAL, "")


async def test_everything_that_is_asked_for_is_there(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    app.policy("gentle", Policy())
    first = await app.enqueue("q")
    item_id = await app.enqueue(
        "q",
        delay="1h",
        priority="high",
        order_key="cust-9",
        limit_key="host-a",
        dedupe_key="order-1",
        dedupe_window="1d",
        dedupe_scope="store",
        after=[first],
        on_dead="die",
        policy="gentle",
    )
    history = await app.history(item_id)
    item = history.item
    dedupe = Dedupe("order-1", "store", 86_400_000)
    assert item.terms == Terms("cust-9", "host-a", dedupe, (first,), "die", "gentle")
    assert (item.priority, item.hold, history.blocked_by) == (Priority.HIGH, "after", (first,))
    assert item.due_at - item.enqueued_at == 3_600_000


async def test_a_time_is_kept_to_the_millisecond_and_is_never_early(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    now = (await app.tally()).at
    base = datetime.fromtimestamp(now // 1000 + 3600, UTC)
    for micros, millis in ((0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)):
        item_id = await app.enqueue("q", at=base + timedelta(microseconds=micros))
        assert (await app.get(item_id)).due_at == (now // 1000 + 3600) * 1000 + millis
    elsewhere = base.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert (await app.get(await app.enqueue("q", at=elsewhere))).due_at == (now // 1000 + 3600) * 1000


@pytest.mark.parametrize("at", [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)])
async def test_what_has_passed_is_due_at_once(lab: Lab, at: datetime) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    item = await app.get(await app.enqueue("q", at=at))
    assert item.due_at == item.enqueued_at


async def test_a_twin_gets_the_id_of_the_holder(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    seen = Seen(app)
    first = await app.enqueue("q", 1, dedupe_key="k")
    again = await app.enqueue("q", 2, dedupe_key="k")
    own = await app.enqueue("q", 3, dedupe_key="k", id="mine")
    assert (first.duplicate, again, again.duplicate, own, own.duplicate) == (False, first, True, first, True)
    assert [event.ids for event in seen.of(Enqueued)] == [(first,), (), ()]
    (row,) = (await app.tally()).queues
    assert row.ready == 1
    await lab.drain(app)
    assert not (await app.enqueue("q", 4, dedupe_key="k")).duplicate


async def test_an_own_id_that_is_there_is_no_twin(lab: Lab) -> None:
    """A repeat of one's own request is told as such, whoever holds the key by now."""
    app = await lab.app()
    app.handler("q")(_nothing)
    await app.enqueue("q", 1, id="mine", dedupe_key="k")
    again = await app.enqueue("q", 1, id="mine", dedupe_key="k")
    assert (again, again.duplicate) == ("mine", True)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
async def test_an_enqueue_of_unknown_outcome_is_not_its_own_twin(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    app.handler("q")(_nothing)
    faulty.next("put", fault)
    item_id = await lab.drive(app.enqueue("q", dedupe_key="k"))
    assert not item_id.duplicate
    assert (await app.get(item_id)).state is State.READY


async def test_each_of_many_has_the_keys_of_its_payload(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    payloads = [{"customer": "a"}, {"customer": "b"}, {"customer": "a"}, {"customer": None}]
    ids = await app.enqueue_many("q", payloads, order_key=lambda each: each["customer"], limit_key="all")
    terms = [(await app.get(each)).terms for each in ids]
    assert [each.order_key for each in terms if each is not None] == ["a", "b", "a", ""]
    assert {each.limit_key for each in terms if each is not None} == {"all"}
    assert [(await app.get(each)).hold for each in ids] == ["", "", "order", ""]


async def test_twins_within_one_call_are_told_one_by_one(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    ids = await app.enqueue_many("q", [1, 1, 2], dedupe_key=str)
    assert [each.duplicate for each in ids] == [False, True, False]
    assert ids[1] == ids[0]
    (row,) = (await app.tally()).queues
    assert row.ready == 2


async def test_a_full_queue_refuses_all_and_says_its_fill(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q", capacity=3)
    await app.enqueue_many("q", [1, 2])
    with pytest.raises(QueueFull) as raised:
        await app.enqueue_many("q", [3, 4])
    assert (raised.value.queue, raised.value.fill, raised.value.capacity) == ("q", 2, 3)
    await app.enqueue("q", 3)
    with pytest.raises(QueueFull, match="holds 3 of at most 3; 1 item refused"):
        await app.enqueue("q", 4)


async def test_a_follow_up_can_be_asked_for_alike(lab: Lab) -> None:
    app = await lab.app()
    app.policy("gentle", Policy())
    app.queue("next")
    made: list[str] = []

    @app.handler("q")
    async def first() -> None:
        made.append(
            app.follow_up(
                "next", delay="1m", priority="low", order_key="o", limit_key="l", dedupe_key="d", policy="gentle"
            )
        )

    await app.enqueue("q")
    await lab.drain(app)
    item = await app.get(made[0])
    assert item.terms == Terms("o", "l", Dedupe("d"), policy="gentle")
    assert (item.priority, item.due_at - item.enqueued_at) == (Priority.LOW, 60_000)


Ask = Callable[[Redrive], Any]


@pytest.mark.parametrize(
    ("ask", "field", "says"),
    [
        ({"priority": "urgent"}, "priority", "none of high, normal, low"),
        ({"priority": "Hihg"}, "priority", "did you mean 'high'?"),
        ({"priority": 1}, "priority", "1 is none of"),
        ({"delay": "-1s"}, "delay", "sign"),
        ({"delay": -1}, "delay", "negative"),
        ({"delay": "soon"}, "delay", "not a duration"),
        ({"at": datetime(2030, 1, 1)}, "at", "has no time zone"),  # noqa: DTZ001 - what is refused
        ({"at": "tomorrow"}, "at", "not a datetime"),
        ({"at": 1_900_000_000}, "at", "not a datetime"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": "1s"}, "at", "cannot go with delay"),
        ({"order_key": ""}, "order_key", "it is empty"),
        ({"order_key": "x" * 513}, "order_key", "it has 513 characters"),
        ({"order_key": 7}, "order_key", "str(...)"),
        ({"order_key": "a\0"}, "order_key", "NUL"),
        ({"limit_key": ""}, "limit_key", "it is empty"),
        ({"limit_key": "\ud800"}, "limit_key", "half a character"),
        ({"dedupe_key": ""}, "dedupe_key", "it is empty"),
        ({"dedupe_key": "k", "dedupe_window": "-1s"}, "dedupe_window", "sign"),
        ({"dedupe_window": "1h"}, "dedupe_window", "without a key"),
        ({"dedupe_scope": "store"}, "dedupe_scope", "without a key"),
        ({"dedupe_key": "k", "dedupe_scope": "world"}, "dedupe_scope", "none of queue, store"),
        ({"after": 5}, "after", "names no items"),
        ({"after": [5]}, "after", "not an id"),
        ({"after": [""]}, "after", "not an id"),
        ({"after": b"x"}, "after", "names no items"),
        ({"after": [str(number) for number in range(1001)]}, "after", "1,001 items"),
        ({"after": "x", "on_dead": "dye"}, "on_dead", "did you mean 'die'?"),
        ({"policy": "gentel"}, "policy", "did you mean 'gentle'?"),
        ({"policy": "else"}, "policy", "app.policy('else', Policy(...))"),
        ({"policy": 5}, "policy", "5 is not a policy"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(
    memory_lab: Lab, ask: dict[str, Any], field: str, says: str
) -> None:
    app = await memory_lab.app()
    app.handler("q")(_nothing)
    app.policy("gentle", Policy())
    for call in (app.enqueue("q", 1, **ask), app.enqueue_many("q", [1], **ask)):
        with pytest.raises(ConfigError) as raised:
            await call
        assert raised.value.field == field
        assert says in str(raised.value)
        assert raised.value.hint
    assert not any(row.ready for row in (await app.tally()).queues)


async def test_durations_that_are_none_are_bad_durations(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.handler("q")(_nothing)
    with pytest.raises(BadDuration):
        await app.enqueue("q", dedupe_key="k", dedupe_window="a while")


async def test_a_key_function_that_answers_nonsense_is_said(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.handler("q")(_nothing)
    with pytest.raises(ConfigError, match="order_key"):
        await app.enqueue_many("q", [1, 2], order_key=lambda payload: payload)
    with pytest.raises(KeyError):
        await app.enqueue_many("q", [{}], dedupe_key=lambda payload: payload["id"])
    assert not any(row.ready for row in (await app.tally()).queues)


async def test_an_unknown_item_to_wait_for_is_refused(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    with pytest.raises(BadDependency) as raised:
        await app.enqueue("q", after=["no-such-item"])
    assert raised.value.field == "after"
    assert "'no-such-item'" in str(raised.value)
    assert not any(row.ready + row.held for row in (await app.tally()).queues)


async def test_an_item_cannot_wait_for_itself(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    with pytest.raises(BadDependency, match="a -> a"):
        await app.enqueue("q", id="a", after=["a"])
    assert not any(row.ready + row.held for row in (await app.tally()).queues)


async def test_one_id_to_wait_for_needs_no_list_and_doubles_are_one(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    first = await app.enqueue("q")
    for after in (first, [first, first], (each for each in [first])):
        item = await app.get(await app.enqueue("q", after=after))
        assert item.terms == Terms(after=(first,))
