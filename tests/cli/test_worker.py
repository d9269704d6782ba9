"""`redrive worker run`: finding the app, working, and how it stops. Real signals are in proofs/cli/test_worker.py."""

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from redrive import Policy, Redrive, never
from redrive.app.internals import store_of
from redrive.cli import worker_session
from redrive.cli.exits import Exit
from redrive.cli.leaving import leave_now
from redrive.core.item import History
from redrive.core.states import State
from redrive.errors import StoreUnavailable
from redrive.events import Event, StoreFailed, StoreRecovered, WorkerOrdered, WorkerStarted
from redrive.observe.endpoint import HealthServer
from tests.support.cli import PATIENCE, here, made_in, store_in
from tests.support.in_process import RunWorker, run_worker, when_logged
from tests.support.probes import ask, fetch, registry
from tests.support.signals import Signals

__all__ = ["registry", "run_worker"]

TASKS = """
from redrive import Redrive

app = Redrive("memory:")
not_an_app = 3
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    # A busy machine has the time that it needs for the last write.
    monkeypatch.setattr("redrive.engine.worker.LAST_WORDS", PATIENCE * 1000)
    monkeypatch.setattr(worker_session, "LAST_WORDS", PATIENCE * 1000)
    (tmp_path / "tasks.py").write_text(TASKS)


@pytest.fixture
def app(tmp_path: Path) -> Redrive:
    return Redrive(made_in(tmp_path))


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def put(queue: str, *names: str) -> list[str]:
    async def enqueue() -> list[str]:
        async with Redrive(store_in(Path.cwd())) as app:
            app.queue(queue)
            return [str(made) for made in await app.enqueue_many(queue, [{"name": name} for name in names])]

    return asyncio.run(enqueue())


def histories(*ids: str) -> list[History]:
    async def read() -> list[History]:
        async with Redrive(store_in(Path.cwd())) as app:
            return [await app.letters.get(each) for each in ids]

    return asyncio.run(read())


# -- finding the app -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nope:app", "no module 'nope' (run it where nope.py is; this is "),
        ("nope.deep:app", "no module 'nope'"),
        ("tasks.deep:app", "no module 'tasks.deep'"),
        ("tasks:ap", "module 'tasks' has no 'ap' (use tasks:app)"),
        ("tasks:not_an_app", "tasks:not_an_app is a int, not a Redrive (use tasks:app)"),
        ("tasks", "as in tasks:app"),
        ("tasks.py", "as in tasks:app"),
        ("./shop/tasks.py:queue", "as in shop.tasks:queue"),
        ("tasks:", "as in tasks:app"),
        (":app", "as in tasks:app"),
        ("", "as in tasks:app"),
        ("\x1b[2J:app", "\\x1b[2J:app' does not name an app"),
    ],
)
@pytest.mark.usefixtures("own_modules")
def test_a_wrong_app_says_what_to_write(target: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "run", target)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero"),
        ("x = = 1", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("from redrive import Policy; Policy(max_attempts=0)", "max_attempts"),
    ],
    ids=["import", "error", "syntax", "exit", "redrive"],
)
def test_a_module_that_fails_shows_its_own_traceback(
    source: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(source)
    told = here(capsys, "worker", "run", "broken:app")
    assert (told.code, told.out) == (Exit.FAILED, "")
    assert said in told.err
    assert "broken.py" in told.err
    assert "importlib" not in told.err
    assert told.err.splitlines()[-1].startswith("redrive: importing 'broken' failed")


def test_a_store_that_cannot_be_opened_is_7(run_worker: RunWorker) -> None:
    app = Redrive("sqlite:///no/such/folder/redrive.db")

    @app.handler("q")
    async def handle() -> None: ...

    told = run_worker(app)
    assert told.code == Exit.STORE
    assert "Traceback" not in told.err


def test_a_queue_nobody_handles_is_5(run_worker: RunWorker, tmp_path: Path) -> None:
    told = run_worker(quick(Redrive("sqlite:///redrive.db")), "--queues", "quik")
    assert told.code == Exit.NOT_FOUND
    assert "did you mean 'quick'?" in told.err
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".db"], "a typo made a store"


# -- working ---------------------------------------------------------------------------------------------------------


def quick(app: Redrive) -> Redrive:
    @app.handler("quick", policy=Policy(never()))
    async def quick(name: str) -> None:
        if name == "bad":
            raise ValueError("no \x1b[2J such\nforged line")

    return app


@pytest.mark.usefixtures("on_store")
def test_until_idle_does_the_work_and_logs_one_harmless_line_each(run_worker: RunWorker) -> None:
    good, bad = put("quick", "good", "bad")
    told = run_worker(quick(Redrive(store_in(Path.cwd()))), "--until-idle", "--queues", "quick")
    assert told.code == Exit.DONE
    (failed,) = [line for line in told.err.splitlines() if "ValueError" in line]
    assert "no \\x1b[2J such\\nforged line" in failed
    assert "\nforged" not in told.err
    assert [each.item.state for each in histories(good, bad)] == [State.DONE, State.DEAD]


def test_json_logs_are_json(run_worker: RunWorker, app: Redrive) -> None:
    put("quick", "bad")
    told = run_worker(quick(app), "--until-idle", "--queues", "quick", "--json-logs", "-v")
    assert told.code == Exit.DONE
    records = [json.loads(line) for line in told.err.splitlines()]
    (finished,) = [record for record in records if record.get("event") == "Finished"]
    assert finished["state"] == "dead"
    assert finished["level"] == "error"
    assert finished["at"].endswith("Z")


def test_memory_is_said_to_be_lonely(run_worker: RunWorker) -> None:
    told = run_worker(quick(Redrive("memory:")), "--until-idle")
    assert told.code == Exit.DONE
    assert "nobody outside of this process" in told.err


# -- probes ----------------------------------------------------------------------------------------------------------


class Endpoint(HealthServer):
    """On any port, which the test can see."""

    opened: ClassVar[list[HealthServer]] = []

    def start(self) -> None:
        super().start()
        self.opened.append(self)


@pytest.mark.usefixtures("registry")
def test_probes_and_metrics_of_a_worker(
    run_worker: RunWorker, app: Redrive, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.observe.endpoint.HealthServer", Endpoint)
    put("probed", "one")
    seen: dict[str, Any] = {}

    @app.handler("probed", lease="1h")
    def probed(name: str) -> None:
        port = Endpoint.opened[-1].port
        seen["live"] = ask(port, "/health/live")
        seen["ready"] = ask(port, "/health/ready")
        seen["metrics"] = fetch(port, "/metrics")
        signals.send(signal.SIGTERM)
        seen["stopping"] = ask(port, "/health/ready")

    told = run_worker(app, "--health-port", "0")
    assert told.code == Exit.DONE
    assert "probes and metrics on port" in told.err
    assert seen["live"] == (200, {"status": "healthy"})
    assert seen["ready"] == (200, {"status": "healthy", "working": True, "store_failing": []})
    assert 'redrive_items_running{queue="probed"} 1.0' in seen["metrics"][2]
    assert 'redrive_queue_depth{queue="probed",state="leased"} 1.0' in seen["metrics"][2]
    assert seen["stopping"] == (503, {"status": "unhealthy", "working": False, "store_failing": []})
    assert Endpoint.opened[-1].port is None, "the port is free again"


def test_a_health_port_that_is_taken_is_one_line_and_nothing_runs(run_worker: RunWorker, app: Redrive) -> None:
    (item,) = put("quick", "one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = run_worker(quick(app), "--until-idle", "--health-port", str(port))
    assert told.code == Exit.FAILED
    assert f"health_port: {port} of '127.0.0.1' cannot be listened on" in told.err
    assert told.err.count("\n") == 1
    assert histories(item)[0].item.state is State.READY


def test_a_worker_whose_store_does_not_answer_is_not_ready(app: Redrive) -> None:
    session = worker_session.Session(app, 0)
    assert session.health()["status"] == "unhealthy", "it has not begun"
    for event, status in (
        (WorkerStarted("w", ("quick",)), "healthy"),
        (StoreFailed("pump", "postgresql://me:secret@host is away"), "unhealthy"),
        (StoreRecovered("pump"), "healthy"),
        (WorkerOrdered("w", "drain", "ops", "release"), "unhealthy"),
    ):
        app.events.emit(event)
        assert session.health()["status"] == status
        assert "secret" not in str(session.health())


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, Exit.DONE), (signal.SIGINT, Exit.INTERRUPTED)])
def test_one_signal_drains(
    number: signal.Signals, code: int, run_worker: RunWorker, app: Redrive, signals: Signals
) -> None:
    """The handler ends in the very moment in which the worker says that it stops: nothing more is begun."""
    first, second = put("patient", "one", "two")

    @app.handler("patient", lease="1h", concurrency=1)
    async def patient(name: str) -> None:
        said = asyncio.Event()
        when_logged("stopping", said.set)
        signals.send(number)
        await said.wait()

    told = run_worker(app)
    assert told.code == code
    assert f"{number.name}: stopping; running handlers may finish within 30s" in told.err
    assert [each.item.state for each in histories(first, second)] == [State.DONE, State.READY]


def handle_in_loop(app: Redrive, signals: Signals, over: threading.Event) -> None:
    @app.handler("stuck", lease="1h")
    async def stuck(name: str) -> None:
        when_logged("stopping;", lambda: signals.send(signal.SIGTERM))
        signals.send(signal.SIGTERM)
        await asyncio.Event().wait()


def handle_in_thread(app: Redrive, signals: Signals, over: threading.Event) -> None:
    @app.handler("stuck", lease="1h")
    def stuck(name: str) -> None:
        when_logged("stopping;", lambda: signals.send(signal.SIGTERM))
        signals.send(signal.SIGTERM)
        over.wait(PATIENCE)


def handle_in_executor(app: Redrive, signals: Signals, over: threading.Event) -> None:
    @app.handler("stuck", lease="1h")
    async def stuck(name: str) -> None:
        when_logged("stopping;", lambda: signals.send(signal.SIGTERM))
        signals.send(signal.SIGTERM)
        await asyncio.to_thread(over.wait, PATIENCE)


HANDLERS = [handle_in_loop, handle_in_thread, handle_in_executor]
Declare = Callable[[Redrive, Signals, threading.Event], None]


@pytest.mark.parametrize("declare", HANDLERS)
def test_a_second_signal_stops_at_once_and_charges_nobody(
    declare: Declare, run_worker: RunWorker, app: Redrive, signals: Signals
) -> None:
    (id,) = put("stuck", "one")  # noqa: A001 - the word of the domain
    over = threading.Event()
    declare(app, signals, over)
    told = run_worker(app, "--grace", "1h")
    over.set()
    assert told.code == Exit.INTERRUPTED
    assert "SIGTERM: stopping; running handlers may finish within 1h" in told.err
    assert "SIGTERM again: stopping at once" in told.err
    (history,) = histories(id)
    assert history.item.state is State.READY
    assert (history.item.errors, history.item.crashes, history.item.attempt) == (0, 0, 0)


def test_a_third_signal_leaves_at_once(run_worker: RunWorker, app: Redrive, signals: Signals) -> None:
    put("stuck", "one")

    @app.handler("stuck")
    async def stuck(name: str) -> None:
        for _ in range(3):
            signals.send(signal.SIGTERM)
        await asyncio.Event().wait()

    told = run_worker(app, "--grace", "1h")
    assert told.code == Exit.INTERRUPTED
    assert "SIGTERM once more: leaving now" in told.err


def test_the_grace_ends(run_worker: RunWorker, app: Redrive, signals: Signals) -> None:
    (id,) = put("stuck", "one")  # noqa: A001 - the word of the domain
    over = threading.Event()

    @app.handler("stuck")
    def stuck(name: str) -> None:
        signals.send(signal.SIGTERM)
        over.wait(PATIENCE)

    told = run_worker(app, "--grace", "1ms")
    over.set()
    assert told.code == Exit.DONE
    (history,) = histories(id)
    assert (history.item.state, history.item.attempt) == (State.READY, 0)


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process(
    run_worker: RunWorker, app: Redrive, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("stuck", "one")
    leaving: list[int] = []

    def leave(code: int) -> None:
        leaving.append(code)
        leave_now(code)

    monkeypatch.setattr(worker_session, "leave_now", leave)
    monkeypatch.setattr(worker_session, "LINGER", 0)
    monkeypatch.setattr("redrive.engine.worker.LAST_WORDS", 0)

    @app.handler("stuck")
    async def stuck(name: str) -> None:
        signals.send(signal.SIGTERM)
        while not leaving:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    told = run_worker(app, "--grace", "0s")
    assert (told.code, leaving) == (Exit.DONE, [Exit.DONE])
    assert "left behind 1 tasks that would not end" in told.err


@pytest.mark.usefixtures("on_store")
def test_an_idle_worker_stops_when_told(run_worker: RunWorker, signals: Signals) -> None:
    app = quick(Redrive(store_in(Path.cwd())))

    def stop(event: Event) -> None:
        if isinstance(event, WorkerStarted):
            signals.send(signal.SIGTERM)

    app.events.subscribe(stop)
    assert run_worker(app).code == Exit.DONE


def test_a_store_that_is_gone_does_not_keep_the_process(
    run_worker: RunWorker, app: Redrive, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("vanish", "one")
    monkeypatch.setattr("redrive.engine.worker.LAST_WORDS", 0)

    async def fail(*arguments: object) -> None:
        raise StoreUnavailable("the disk is gone")

    def stop(event: Event) -> None:
        if isinstance(event, StoreFailed):
            signals.send(signal.SIGTERM)

    app.events.subscribe(stop)

    @app.handler("vanish")
    async def vanish(name: str) -> None:
        monkeypatch.setattr(store_of(app), "settle", fail)  # where it goes away

    told = run_worker(app, "--queues", "vanish", "--grace", "1ms")
    assert told.code == Exit.STORE
    assert "the disk is gone" in told.err.splitlines()[-1]


def test_help_does_not_offer_what_would_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--store" not in here(capsys, "worker", "run", "-h").out
