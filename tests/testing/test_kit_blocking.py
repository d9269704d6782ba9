from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest

from redrive import Redrive, testing
from redrive.blocking import Policy, constant
from redrive.blocking import Redrive as BlockingRedrive
from redrive.errors import CalledFromLoop, ConfigError
from redrive.testing import FakeClock
from redrive.testing import blocking as kit


@pytest.fixture
def app(clock: FakeClock) -> Iterator[BlockingRedrive]:
    with BlockingRedrive("memory:", clock=clock, log=False) as opened:
        yield opened


@pytest.mark.parametrize("name", kit.__all__)
def test_every_name_is_that_of_the_other_colour(name: str) -> None:
    twin, other = getattr(kit, name), getattr(testing, name)
    if not inspect.iscoroutinefunction(other):
        assert twin is other
        return
    parameters, others = inspect.signature(twin).parameters, inspect.signature(other).parameters
    assert list(parameters) == list(others)
    for each in list(parameters)[1:]:
        assert str(parameters[each]) == str(others[each])
    assert inspect.signature(twin).return_annotation == inspect.signature(other).return_annotation


def test_no_function_is_missing() -> None:
    functions = {name for name in testing.__all__ if inspect.isfunction(getattr(testing, name))}
    assert functions <= set(kit.__all__)


def test_a_test_without_a_loop(app: BlockingRedrive, clock: FakeClock) -> None:
    @app.handler("emails", policy=Policy(constant("1h"), max_attempts=3))
    def send(to: str) -> str:
        if to == "nobody":
            raise ConnectionError(f"no mailbox: {to}")
        return f"sent to {to}"

    kit.assert_not_enqueued(app)
    for to in ("ada", "nobody"):
        app.enqueue("emails", {"to": to}, delay="1d")
    kit.assert_enqueued(app, "emails", {"to": "ada"}, delay="1d", count=1)
    drained = kit.drain(app, within="2d")
    assert (len(drained.done), len(drained.retried), len(drained.dead)) == (1, 2, 1)
    kit.assert_done(app, "emails", result="sent to ada")
    (letter,) = kit.assert_dead(app, containing={"to": "nobody"}, error=ConnectionError, text="no mailbox")
    assert app.letters.get(letter.id).item == letter
    assert clock.monotonic() == 2 * 24 * 3_600_000
    with pytest.raises(AssertionError, match="expected at least 1 item, found none"):
        kit.assert_enqueued(app)


def test_fail_fast_raises_the_handlers_error(app: BlockingRedrive) -> None:
    @app.handler("emails")
    def send() -> None:
        raise KeyError("user")

    app.enqueue("emails")
    with pytest.raises(KeyError):
        kit.drain(app, fail_fast=True)


def test_it_leaves_no_thread_behind(clock: FakeClock) -> None:
    before = set(threading.enumerate())
    app = Redrive("memory:", clock=clock, log=False)

    @app.handler("emails")
    def send() -> None: ...

    with kit.sandbox(app, clock=clock):
        kit.assert_not_enqueued(app)
        kit.drain(app)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


async def test_in_a_loop_it_says_what_to_use(clock: FakeClock) -> None:
    async with Redrive("memory:", clock=clock, log=False) as app:
        with pytest.raises(CalledFromLoop, match=r"use `from redrive\.testing import drain`, and await it"):
            kit.drain(app)
    blocking = BlockingRedrive("memory:", clock=clock)
    with pytest.raises(ConfigError, match=r"app: it is an app of redrive\.blocking.*redrive\.testing\.blocking"):
        await testing.drain(blocking)  # type: ignore[arg-type]
