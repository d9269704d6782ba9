"""Worker processes of a group are replaced when they die, and all end with their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.core.item import Ending, History
from redrive.core.states import State
from tests.support.cli import PATIENCE, WorkerProcess, piped
from tests.support.probes import ask, fetch

TASKS = """
import asyncio
import os
from pathlib import Path

from redrive import Policy, Redrive, constant

app = Redrive()


# Long: a process that stands still for a moment loses nothing by it. Who is to die has a short one.
@app.handler("patient", policy=Policy(constant("10ms")), lease=os.environ.get("LEASE", "1h"), concurrency=1)
async def patient(name: str) -> None:
    # In one write: processes of a group share what they write to.
    print(f"begun {name} {os.getpid()}\\n", end="", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.02)  # noqa: TID251 - in a child, which nobody can tell that the file is there
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
    for group in started:
        group.close()


def put(*names: str) -> list[str]:
    async def enqueue() -> list[str]:
        async with Redrive("sqlite:///redrive.db") as app:
            app.queue("patient")
            return [str(made) for made in await app.enqueue_many("patient", [{"name": name} for name in names])]

    return asyncio.run(enqueue())


def history(item_id: str) -> History:
    async def read() -> History:
        async with Redrive("sqlite:///redrive.db") as app:
            return await app.history(item_id)

    return asyncio.run(read())


def pid_in(line: str) -> int:
    """Of "begun NAME PID"."""
    return int(line.rpartition(" ")[2])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until_gone(*pids: int) -> None:
    """They are no children of ours, so nobody can tell us."""
    ends = time.monotonic() + PATIENCE
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < ends, "it outlived its supervisor"
        time.sleep(0.05)  # noqa: TID251 - real processes


# -- in real processes -------------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_is_replaced_and_its_work_knows_why(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASE", "2s")
    (item_id,) = put("one")
    group = start("--processes", "1")
    first = pid_in(group.until("begun one"))
    os.kill(first, signal.SIGKILL)
    group.until(f"worker process {first} ended: killed by SIGKILL; another is started in 1s")
    group.until("started for patient")
    second = pid_in(group.until("begun one"))
    assert second != first
    Path("go").touch()
    group.signal(signal.SIGTERM)
    assert group.end() == Exit.DONE
    told = history(item_id)
    assert told.item.state is State.DONE
    lost = told.attempts[0]
    assert lost.ending is Ending.CRASHED
    assert lost.failure is not None
    assert "killed by SIGKILL" in lost.failure.text
    assert gone(second)


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_ctrl_c_is_passed_on_as_often_as_it_is_typed(times: int, start: Start) -> None:
    ids = put("one", "two")
    group = start("--processes", "2", "--grace", "1h")
    pids = [pid_in(group.until("begun")) for _ in ids]
    assert len(set(pids)) == 2
    for _ in range(times):
        group.signal(signal.SIGINT)
        group.until("SIGINT")
        group.until("SIGINT")
    if times == 1:
        Path("go").touch()
    assert group.end() == Exit.INTERRUPTED
    said = "\n".join(group.seen)
    assert (said.count("SIGINT: stopping"), said.count("SIGINT again")) == (2, 2 * (times - 1))
    assert {history(each).item.state for each in ids} == {State.DONE if times == 1 else State.READY}
    assert all(gone(pid) for pid in pids)


def test_processes_end_in_good_order_when_their_supervisor_is_killed(start: Start) -> None:
    (item_id,) = put("one")
    group = start("--processes", "1")
    pid = pid_in(group.until("begun one"))
    group.signal(signal.SIGKILL)
    group.until("the supervisor is gone")
    Path("go").touch()
    until_gone(pid)
    assert history(item_id).item.state is State.DONE


def test_a_supervisor_and_its_process_answer_probes(start: Start) -> None:
    put("one")
    port = two_free_ports()
    group = start("--processes", "1", "--health-port", str(port))
    group.until("begun one")
    ends = time.monotonic() + PATIENCE
    while ask(port, "/health/ready") != (200, {"status": "healthy", "processes": 1, "ready": 1}):
        assert time.monotonic() < ends
    assert ask(port + 1, "/health/ready") == (200, {"status": "healthy", "working": True, "store_failing": []})
    assert 'redrive_items_running{queue="patient"} 1.0' in fetch(port + 1, "/metrics")[2]
    Path("go").touch()
    group.signal(signal.SIGTERM)
    assert group.end() == Exit.DONE


def two_free_ports() -> int:
    """The first of two that follow each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, suppress(OSError):
            port: int = first.getsockname()[1]
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


def test_a_group_ends_with_its_work(start: Start) -> None:
    Path("go").touch()
    ids = put("one", "two", "three")
    group = start("--processes", "2", "--until-idle", "--json-logs")
    assert group.end() == Exit.DONE
    assert {history(each).item.state for each in ids} == {State.DONE}
    assert all(line.startswith(("{", "begun")) for line in group.seen)


def test_what_can_never_start_is_not_tried_again(tmp_path: Path) -> None:
    told = piped("worker", "run", "tasks:app", "--processes", "2", "--queues", "patent", cwd=tmp_path)
    assert told.returncode == Exit.NOT_FOUND
    assert "did you mean 'patient'?" in told.stderr
    assert "another is started" not in told.stderr


def test_reload_follows_the_source_through_a_mistake(start: Start, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.py"
    group = start("--reload")
    group.until("started for patient")
    tasks.write_text(TASKS + "x = = 1\n")
    group.until("tasks.py changed; starting anew")
    group.until("it is started again when a source changes")
    tasks.write_text(TASKS.replace("begun", "mended"))
    put("one")
    group.until("mended one")
    Path("go").touch()
    group.signal(signal.SIGTERM)
    assert group.end() == Exit.DONE
