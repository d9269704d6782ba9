"""A blocking call where an event loop runs is refused by name, and never waits for itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest

from redrive.app import Redrive as AsyncRedrive
from redrive.blocking import Redrive
from redrive.errors import CalledFromLoop
from redrive.events import Enqueued, Event, SubscriberFailed
from redrive.office.letters import Letters
from redrive.office.schedules import Schedules
from tests.blocking.kit import loop_threads
from tests.support.cli import PATIENCE


def awaited(kind: type) -> list[str]:
    """What has to be awaited there, and so would block here."""
    names = [name for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if name[0] != "_"]
    assert names, kind
    return names


def call(method: Callable[..., object]) -> None:
    """With anything for what must be given: it is refused before it is looked at."""
    parameters = inspect.signature(method).parameters.values()
    method(**{each.name: "x" for each in parameters if each.default is each.empty})


@pytest.mark.parametrize("name", awaited(AsyncRedrive))
async def test_every_call_is_refused_where_a_loop_runs(app: Redrive, name: str) -> None:
    with pytest.raises(CalledFromLoop) as caught:
        call(getattr(app, name))
    assert caught.value.message.startswith(f"{name} of redrive.blocking")
    assert caught.value.hint == f"use `from redrive import Redrive` and `await app.{name}(...)`"
    assert not loop_threads()


@pytest.mark.parametrize("name", awaited(Letters))
async def test_so_is_every_call_of_the_office(app: Redrive, name: str) -> None:
    await asyncio.to_thread(app.open)
    with pytest.raises(CalledFromLoop) as caught:
        call(getattr(app.letters, name))
    assert caught.value.message.startswith(f"letters.{name} of redrive.blocking")
    assert f"await app.letters.{name}(...)" in caught.value.hint
    await asyncio.to_thread(app.close)


@pytest.mark.parametrize("name", awaited(Schedules))
async def test_and_every_call_about_schedules(app: Redrive, name: str) -> None:
    await asyncio.to_thread(app.open)
    with pytest.raises(CalledFromLoop) as caught:
        call(getattr(app.schedules, name))
    assert f"await app.schedules.{name}(...)" in caught.value.hint
    await asyncio.to_thread(app.close)


async def test_with_is_refused_too(app: Redrive) -> None:
    with pytest.raises(CalledFromLoop, match=r"await app\.open"), app:
        pass


async def test_a_thread_of_such_a_program_may_call(app: Redrive) -> None:
    app.queue("q")
    await asyncio.to_thread(app.open)
    item = await asyncio.to_thread(app.enqueue, "q")
    assert (await asyncio.to_thread(app.get, item)).state == "ready"
    await asyncio.to_thread(app.close)


def test_an_async_handler_is_told_what_to_do(app: Redrive) -> None:
    said: list[CalledFromLoop] = []

    @app.handler("first")
    async def first() -> None:
        try:
            app.enqueue("second")
        except CalledFromLoop as error:
            said.append(error)
        app.follow_up("second", {"by": "follow_up"})
        await asyncio.wait_for(asyncio.to_thread(app.enqueue, "second", {"by": "thread"}), PATIENCE)

    got: list[str] = []

    @app.handler("second")
    async def second(by: str) -> None:
        got.append(by)

    with app:
        app.enqueue("first")
        app.run(until_idle=True)
    assert "from redrive import Redrive" in said[0].hint
    assert "make it a plain `def`, or use app.follow_up" in said[0].hint
    assert sorted(got) == ["follow_up", "thread"]


def test_a_subscriber_is_called_in_the_loop(app: Redrive) -> None:
    failed: list[Event] = []

    def listen(event: Event) -> None:
        if isinstance(event, Enqueued):
            app.tally()
        elif isinstance(event, SubscriberFailed):
            failed.append(event)

    app.events.subscribe(listen)
    app.queue("q")
    with app:
        app.enqueue("q")
        app.enqueue("q")
    assert len(failed) == 2
    assert "CalledFromLoop: tally of redrive.blocking" in str(failed[0])
