"""Subscribers see everything and can influence nothing."""

from __future__ import annotations

from redrive import Policy, never
from redrive.core.states import State
from redrive.events import Enqueued, Event, Finished, Leased, Started, SubscriberFailed, WorkerStarted, WorkerStopped
from tests.support.lab import Lab, Seen


async def test_a_subscriber_that_raises_changes_nothing_and_the_others_are_told(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q")
    async def handle() -> str:
        return "done"

    def broken(event: Event) -> None:
        raise ZeroDivisionError("a bug of the user's")

    app.events.subscribe(broken)
    seen = Seen(app)
    item_id = await app.enqueue("q")
    await lab.drain(app)
    assert await app.wait(item_id) == "done"
    told = [event for event in seen.all if not isinstance(event, SubscriberFailed)]
    assert [type(event) for event in told] == [Enqueued, WorkerStarted, Leased, Started, Finished, WorkerStopped]
    failed = seen.of(SubscriberFailed)
    assert len(failed) == len(told)
    assert "broken" in failed[0].subscriber
    assert "ZeroDivisionError" in failed[0].error


async def test_the_events_of_a_death_name_reason_and_cause(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never()))
    async def fail() -> None:
        raise ValueError("no")

    seen = Seen(app)
    item_id = await app.enqueue("q")
    await lab.drain(app)
    (finished,) = seen.of(Finished)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    assert (finished.id, finished.ending, finished.state) == (item_id, "failed", State.DEAD)
    assert (finished.reason, finished.cause) == (letter.reason, letter.failure.cause)
    assert finished.error == "ValueError"


async def test_a_subscription_can_be_ended(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q")
    heard: list[Event] = []
    end = app.events.subscribe(heard.append)
    await app.enqueue("q")
    end()
    await app.enqueue("q")
    assert len(heard) == 1


async def test_a_subscriber_that_unsubscribes_while_it_is_told_does_not_hide_the_event(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.queue("q")
    heard: list[str] = []

    def once(event: Event) -> None:
        heard.append("once")
        end()

    end = app.events.subscribe(once)
    app.events.subscribe(lambda _: heard.append("always"))
    await app.enqueue("q")
    await app.enqueue("q")
    assert heard == ["once", "always", "always"]
