"""Plain handlers may call the app they belong to, and their calls go to the loop of the worker."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.blocking import Item, Policy, Redrive, never
from redrive.cli.exits import Exit
from redrive.errors import UnknownQueue
from redrive.events import Enqueued, Event
from tests.blocking.kit import loop_threads
from tests.support.cli import here, made_in
from tests.support.in_process import RunWorker, run_worker
from tests.support.signals import signals

__all__ = ["run_worker", "signals"]


def test_a_handler_that_calls_reuses_the_loop_of_its_worker(app: Redrive) -> None:
    loops: set[asyncio.AbstractEventLoop] = set()
    counted: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, Enqueued):
            loops.add(asyncio.get_running_loop())

    app.events.subscribe(listen)

    @app.handler("parent", concurrency=4)
    def parent(n: int) -> str:
        child = app.enqueue("child", {"n": n})
        counted.append(len(loop_threads()))
        return str(app.wait(child, timeout="2m"))

    @app.handler("child")
    def child(n: int, item: Item) -> str:
        assert app.get(item.id).state == "leased"
        return f"child {n}"

    with app:
        ids = app.enqueue_many("parent", [{"n": n} for n in range(8)])
        app.run(until_idle=True)
        assert [app.wait(each) for each in ids] == [f"child {n}" for n in range(8)]
    assert set(counted) == {1}
    assert len(loops) == 1


def test_follow_ups_of_plain_handlers(app: Redrive) -> None:
    done: list[int] = []

    @app.handler("orders", policy=Policy(never()))
    def order(number: int) -> None:
        app.follow_up("mail", {"number": number})
        if number == 2:
            raise ValueError("no such order")

    @app.handler("mail")
    def mail(number: int) -> None:
        done.append(number)

    with app:
        app.enqueue_many("orders", [{"number": 1}, {"number": 2}])
        app.run(until_idle=True)
    assert done == [1]


def test_an_error_of_a_call_in_a_handler_is_the_handlers(app: Redrive) -> None:
    @app.handler("q", policy=Policy(never()))
    def handle() -> None:
        app.enqueue("nobody")

    with app:
        item = app.enqueue("q")
        app.run(until_idle=True)
        letter = app.get(item).letter
        assert letter is not None
        assert letter.failure.type.endswith(UnknownQueue.__name__)


# -- redrive worker run ----------------------------------------------------------------------------------------------


@pytest.fixture
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        # Parts of redrive that were imported here for the first time stay: a second copy would not know the first.
        if not name.startswith("redrive."):
            del sys.modules[name]


@pytest.mark.parametrize(("opened", "loops"), [(False, 0), (True, 1)], ids=["plain", "opened by the module"])
def test_the_command_line_runs_a_blocking_app_in_its_own_loop(
    opened: bool, loops: int, tmp_path: Path, run_worker: RunWorker
) -> None:
    url = made_in(tmp_path)
    app = Redrive(url)
    counted: list[int] = []
    enqueued_in: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Enqueued):
            enqueued_in.append(threading.current_thread().name)

    @app.handler("parent")
    def parent(n: int) -> str:
        child = app.enqueue("child", {"n": n})
        app.follow_up("child", {"n": -n})
        return str(app.wait(child, timeout="2m"))

    @app.handler("child")
    def child(n: int) -> str:
        counted.append(len(loop_threads()))
        return f"child {n}"

    app.events.subscribe(listen)
    with Redrive(url) as other:
        other.queue("parent")
        item = other.enqueue("parent", {"n": 7})
    if opened:
        app.open()
    told = run_worker(app, "--until-idle")
    app.close()
    assert told.code == Exit.DONE, told.err
    with Redrive(url) as other:
        assert other.wait(item) == "child 7"
        assert other.tally().queues[0].done == 2
    assert enqueued_in == ["MainThread"]
    assert counted == [loops] * 2


@pytest.mark.usefixtures("_own_modules")
def test_a_wrong_name_offers_the_blocking_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("from redrive.blocking import Redrive\nqueue = Redrive('memory:')\n")
    told = here(capsys, "worker", "run", "shop:ap")
    assert told.code == Exit.USAGE
    assert "use shop:queue" in told.err
    assert not [thread for thread in threading.enumerate() if thread.name == "redrive-loop"]


def test_a_handler_may_stop_the_worker_it_runs_in(app: Redrive) -> None:
    """It does not wait for the worker, which waits for it."""

    @app.handler("q", concurrency=1)
    def stopper() -> str:
        app.stop()
        return "stopped"

    with app:
        item_id = app.enqueue("q")
        app.run()
        assert app.wait(item_id) == "stopped"
