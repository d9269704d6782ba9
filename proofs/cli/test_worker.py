"""A worker process that is killed, or told to stop by real signals, loses no item and charges none."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.core.item import Ending, History
from redrive.core.states import State
from tests.support.cli import WorkerProcess, store_in

# Handlers say when they begin and end on the world's signal: a file. They have no other clock.
TASKS = """
import asyncio
import os
import threading
from pathlib import Path

from redrive import Policy, Redrive, constant

app = Redrive(os.environ.get("REDRIVE_STORE", "sqlite:///redrive.db"))
# Long: a worker that stands still for a moment loses nothing by it. Who is to die has a short one.
lease = os.environ.get("LEASE", "1h")


@app.handler("patient", policy=Policy(constant("10ms")), lease=lease, concurrency=1)
async def patient(name: str) -> str:
    print("begun", name, flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.02)  # noqa: TID251 - in a child, which nobody can tell that the file is there
    return name


@app.handler("stuck", lease=lease, concurrency=1)
def stuck(name: str) -> None:
    print("begun", name, flush=True)
    threading.Event().wait()


@app.handler("offloaded", lease=lease, concurrency=1)
async def offloaded(name: str) -> None:
    print("begun", name, flush=True)
    await asyncio.to_thread(threading.Event().wait)
"""

ENDS_WHEN_IT_IS_SAID = """
import logging

said = asyncio.Event()


class Hearing(logging.Handler):
    def emit(self, record):
        if "stopping" in record.getMessage():
            said.set()


logging.getLogger("redrive.cli").addHandler(Hearing())


@app.handler("hearing", lease=lease, concurrency=1)
async def hearing(name: str) -> None:
    print("begun", name, flush=True)
    await said.wait()
"""

STORE_GOES_AWAY = """
from redrive.app.internals import store_of
from redrive.errors import StoreUnavailable


async def fail(*arguments: object) -> None:
    raise StoreUnavailable("the disk is gone")


@app.handler("vanish")
async def vanish(name: str) -> None:
    store_of(app).settle = fail
"""

Start = Callable[..., WorkerProcess]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    (tmp_path / "tasks.py").write_text(TASKS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def start(*args: str) -> WorkerProcess:
        started.append(WorkerProcess.start("tasks:app", *args, cwd=tmp_path))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


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


@pytest.mark.usefixtures("on_store")
def test_a_killed_worker_costs_nothing_but_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = put("patient", "one")  # noqa: A001 - the word of the domain
    with monkeypatch.context() as mortal:
        mortal.setenv("LEASE", "1s")
        first = start("--until-idle")
    first.until("begun one")
    first.signal(signal.SIGKILL)
    assert first.end() == -signal.SIGKILL
    second = start("--until-idle")
    second.until("begun one")
    Path("go").touch()
    assert second.end() == Exit.DONE
    (history,) = histories(id)
    assert history.item.state is State.DONE
    assert [attempt.ending for attempt in history.attempts] == [Ending.CRASHED, Ending.DONE]


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_store")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, Exit.DONE), (signal.SIGINT, Exit.INTERRUPTED)])
def test_one_signal_drains(number: signal.Signals, code: int, start: Start) -> None:
    first, second = put("patient", "one", "two")
    worker = start()
    worker.until("begun one")
    worker.signal(number)
    worker.until(f"{number.name}: stopping")
    Path("go").touch()
    assert worker.end() == code
    assert [each.item.state for each in histories(first, second)] == [State.DONE, State.READY]
    assert "begun two" not in worker.seen


def test_a_worker_that_says_it_stops_begins_nothing_more(tmp_path: Path, start: Start) -> None:
    """However soon after it has said so its slot is free."""
    (tmp_path / "tasks.py").write_text(f"{TASKS}\n{ENDS_WHEN_IT_IS_SAID}")
    first, second = put("hearing", "one", "two")
    worker = start("--queues", "hearing")
    worker.until("begun one")
    worker.signal(signal.SIGTERM)
    assert worker.end() == Exit.DONE
    assert [each.item.state for each in histories(first, second)] == [State.DONE, State.READY]


@pytest.mark.parametrize("queue", ["patient", "stuck", "offloaded"])
def test_a_second_signal_stops_at_once_and_charges_nobody(queue: str, start: Start) -> None:
    (id,) = put(queue, "one")  # noqa: A001 - the word of the domain
    worker = start("--grace", "1h")
    worker.until("begun one")
    worker.signal(signal.SIGTERM)
    worker.until("SIGTERM: stopping; running handlers may finish within 1h")
    worker.signal(signal.SIGTERM)
    worker.until("at once")
    assert worker.end() == Exit.INTERRUPTED
    (history,) = histories(id)
    assert history.item.state is State.READY
    assert (history.item.errors, history.item.crashes, history.item.attempt) == (0, 0, 0)
    left = [line for line in worker.seen if "left behind 1 thread" in line]
    assert len(left) == (queue != "patient")


def test_the_grace_ends(start: Start) -> None:
    (id,) = put("stuck", "one")  # noqa: A001 - the word of the domain
    worker = start("--grace", "50ms")
    worker.until("begun one")
    worker.signal(signal.SIGTERM)
    assert worker.end() == Exit.DONE
    (history,) = histories(id)
    assert (history.item.state, history.item.attempt) == (State.READY, 0)


@pytest.mark.usefixtures("on_store")
def test_an_idle_worker_stops_when_told(start: Start) -> None:
    worker = start()
    worker.until("started for")
    worker.signal(signal.SIGTERM)
    assert worker.end() == Exit.DONE


def test_a_store_that_is_gone_does_not_keep_the_process(tmp_path: Path, start: Start) -> None:
    (tmp_path / "tasks.py").write_text(f"{TASKS}\n{STORE_GOES_AWAY}")
    put("vanish", "one")
    worker = start("--queues", "vanish", "--grace", "50ms")
    worker.until("store failed")
    worker.signal(signal.SIGTERM)
    assert worker.end() == Exit.STORE
    assert "the disk is gone" in worker.seen[-1]
