from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from redrive import Policy, Redrive, blocking, constant
from redrive.errors import AppClosed, ConfigError, StoreUnavailable, UnknownQueue
from redrive.events import Enqueued, Event
from redrive.stores.sqlite import SqliteStore
from redrive.testing import (
    FakeClock,
    FaultyStore,
    MemoryStore,
    assert_dead,
    assert_done,
    assert_enqueued,
    drain,
    sandbox,
)
from redrive.testing import blocking as kit


class Program:
    """As a user writes it: one app for the whole program, on a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shop.db"
        self.app = Redrive(f"sqlite:///{self.file}", log=False, max_payload=1000, actor="shop")
        self.sent: list[str] = []

        @self.app.handler("emails", policy=Policy(constant("1h"), max_attempts=3))
        async def send(to: str) -> None:
            if to == "nobody":
                raise ConnectionError("no such mailbox")
            self.sent.append(to)

    async def sign_up(self, name: str) -> str:
        return await self.app.enqueue("emails", {"to": name})

    async def serve(self, *names: str) -> None:
        """A life of the program, as a web framework would start and end it."""
        async with self.app:
            for name in names:
                await self.sign_up(name)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def test_the_program_runs_in_memory_and_its_own_store_is_not_touched(program: Program) -> None:
    with sandbox(program.app) as clock:
        assert program.app.info().engine == "memory"
        await program.sign_up("ada")
        await program.sign_up("nobody")
        await assert_enqueued(program.app, "emails", {"to": "ada"})
        await drain(program.app)
        await assert_dead(program.app, "emails", error=ConnectionError, count=1)
        assert (program.sent, clock.monotonic()) == (["ada"], 2 * 3_600_000)
    assert list(program.file.parent.iterdir()) == []
    with pytest.raises(AppClosed, match="is not open"):
        await program.sign_up("ada")


async def test_each_sandbox_is_empty_and_the_options_of_the_app_hold(program: Program) -> None:
    for _ in range(2):
        with sandbox(program.app):
            await program.sign_up("ada")
            await assert_enqueued(program.app, count=1)
            with pytest.raises(Exception, match="the limit is 1,000"):
                await program.sign_up("x" * 2000)
            await drain(program.app)
            await program.app.pause("emails", reason="a test")
            (row,) = (await program.app.tally()).queues
            assert row.paused_by == "shop"


async def test_the_app_is_afterwards_as_it_was_with_what_it_had(program: Program) -> None:
    async with program.app as app:
        real = await program.sign_up("real")
        with sandbox(app):
            await program.sign_up("fake")
            assert len(await assert_enqueued(app)) == 1
        (item,) = await assert_enqueued(app)
        assert item.id == real
        assert app.info().engine == "sqlite"
        await app.run(until_idle=True)
        assert program.sent == ["real"]
    with sandbox(program.app):
        await program.sign_up("again")


async def test_an_error_in_the_block_restores_it_too(program: Program) -> None:
    with pytest.raises(KeyError), sandbox(program.app):
        raise KeyError
    async with program.app as app:
        assert app.info().engine == "sqlite"


async def test_handlers_and_subscribers_of_a_test_are_gone_after_it(program: Program) -> None:
    heard: list[Event] = []
    program.app.events.subscribe(heard.append)
    heard_here: list[Event] = []
    for count in (1, 2):
        with sandbox(program.app):

            @program.app.handler("reports")
            async def report() -> None: ...

            program.app.queue("declared")
            program.app.events.subscribe(heard_here.append)
            await program.app.enqueue("reports")
            assert len(heard_here) == count
    assert [type(event) for event in heard] == [Enqueued, Enqueued], "the program's own subscriber hears of tests"
    async with program.app as app:
        for queue in ("reports", "declared"):
            with pytest.raises(UnknownQueue):
                await app.enqueue(queue)
    assert len(heard_here) == 2


async def test_a_program_may_open_and_close_it_and_the_test_looks_afterwards(program: Program) -> None:
    with sandbox(program.app):
        await program.serve("ada")
        await program.serve("bob")
        with pytest.raises(AppClosed):
            await program.sign_up("eve")
        await assert_enqueued(program.app, count=2)
        await drain(program.app)
        await assert_done(program.app, count=2)
    assert program.sent == ["ada", "bob"]


async def test_handlers_find_an_open_app_although_the_program_has_closed_it(program: Program) -> None:
    @program.app.handler("orders")
    async def order(to: str) -> None:
        await program.sign_up(to)

    with sandbox(program.app):
        async with program.app as app:
            await app.enqueue("orders", {"to": "ada"})
        assert len((await drain(app)).done) == 2
        with pytest.raises(AppClosed):
            await program.sign_up("eve")


async def test_a_sandbox_in_a_sandbox(program: Program) -> None:
    with sandbox(program.app):
        await program.sign_up("outer")
        with sandbox(program.app):
            await program.sign_up("inner")
            await assert_enqueued(program.app, "emails", {"to": "inner"}, count=1)
        await assert_enqueued(program.app, "emails", {"to": "outer"}, count=1)


async def test_a_store_that_fails_on_demand(program: Program) -> None:
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock))
    with sandbox(program.app, store=store, clock=clock) as time:
        assert time is clock
        store.fail("put", times=1)
        with pytest.raises(StoreUnavailable):
            await program.sign_up("ada")
        await program.sign_up("ada")
        assert len(store.calls_of("put")) == 2


def test_a_program_in_a_loop_of_its_own_is_tested_without_one(program: Program) -> None:
    """As with a web framework's test client."""
    with sandbox(program.app) as clock:
        asyncio.run(program.serve("ada", "nobody"))
        kit.assert_enqueued(program.app, "emails", count=2)
        drained = kit.drain(program.app)
        assert (len(drained.done), len(drained.dead)) == (1, 1)
        kit.assert_dead(program.app, "emails", {"to": "nobody"})
        asyncio.run(program.serve("bob"))
        kit.assert_enqueued(program.app, "emails", {"to": "bob"}, count=1)
        assert clock.monotonic() == 2 * 3_600_000


def test_a_blocking_app(tmp_path: Path) -> None:
    app = blocking.Redrive(f"sqlite:///{tmp_path}/shop.db", log=False)
    handled: list[int] = []

    @app.handler("numbers")
    def handle(n: int) -> None:
        handled.append(n)
        if n:
            app.enqueue("numbers", {"n": n - 1})

    before = set(threading.enumerate())
    for _ in range(2):
        with sandbox(app):
            app.enqueue("numbers", {"n": 2}, delay="1h")
            for _ in range(2):
                with app:  # as the program itself does
                    app.tally()
            kit.drain(app)
    assert handled == [2, 1, 0] * 2
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "redrive-loop"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AppClosed):
        app.enqueue("numbers")
    with app:
        assert app.info().engine == "sqlite"


async def test_arguments_that_make_no_sense(program: Program, tmp_path: Path) -> None:
    clock = FakeClock()
    with pytest.raises(ConfigError, match="clock: the store brings a clock"), sandbox(program.app, store=MemoryStore()):
        pass
    store = SqliteStore(tmp_path / "other.db", clock=clock)
    with (
        pytest.raises(ConfigError, match="store: a sandbox needs a store in memory"),
        sandbox(program.app, store=store, clock=clock),
    ):
        pass
    with pytest.raises(ConfigError, match=r"app: .* is not an app"), sandbox(program):  # type: ignore[arg-type]
        pass
    async with program.app as app:
        assert app.info().engine == "sqlite"


async def test_outbox_targets_are_those_of_the_app(program: Program) -> None:
    arrived: list[bytes] = []
    mail, sms = program.app.outbox("mail", lambda item: arrived.append(item.payload)), program.app.outbox("sms")

    @program.app.handler("orders")
    async def order() -> None:
        program.app.follow_up(mail, 1)
        program.app.follow_up(sms, 2)

    with sandbox(program.app):
        await program.app.enqueue("orders")
        await drain(program.app)
        assert arrived == [b"1"]
        await assert_enqueued(program.app, sms, payload=2)
