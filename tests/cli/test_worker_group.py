"""`redrive worker run --processes N`: processes that are replaced when they die and end together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.cli.worker_group import Child, Group, how_it_ended
from redrive.cli.worker_reload import Sources
from redrive.core.item import Ending, History
from redrive.core.states import State
from tests.support.cli import PATIENCE, WorkerProcess, here, piped

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_processes_end_in_good_order_when_their_supervisor_is_killed(start: Start) -> None:
    (item_id,) = put("one")
    group = start("--processes", "1")
    pid = pid_in(group.until("begun one"))
    group.signal(signal.SIGKILL)
    group.until("the supervisor is gone")
    Path("go").touch()
    until_gone(pid)
    assert history(item_id).item.state is State.DONE


@pytest.mark.slow
def test_a_group_ends_with_its_work(start: Start) -> None:
    Path("go").touch()
    ids = put("one", "two", "three")
    group = start("--processes", "2", "--until-idle", "--json-logs")
    assert group.end() == Exit.DONE
    assert {history(each).item.state for each in ids} == {State.DONE}
    assert all(line.startswith(("{", "begun")) for line in group.seen)


@pytest.mark.slow
def test_what_can_never_start_is_not_tried_again(tmp_path: Path) -> None:
    told = piped("worker", "run", "tasks:app", "--processes", "2", "--queues", "patent", cwd=tmp_path)
    assert told.returncode == Exit.NOT_FOUND
    assert "did you mean 'patient'?" in told.stderr
    assert "another is started" not in told.stderr


@pytest.mark.slow
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


# -- without processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--processes", "0"), "--processes: '0' cannot be used"),
        (("--processes", "257"), "use a whole number from 1 to 256"),
        (("--processes", "two"), "--processes: 'two' cannot be used"),
        (("-c", "0"), "--concurrency: '0' cannot be used"),
        (("--grace", "soon"), "--grace: 'soon' is not a duration"),
        (("--queues", ","), "--queues: it names no queue"),
        (("--log-level", "loud"), "--log-level: 'loud' is none of them"),
        (("--config", "nowhere.toml"), "--config: no file nowhere.toml"),
    ],
)
def test_a_wrong_option_is_one_line(option: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "run", "tasks:app", *option)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert said in told.err
    assert told.err.count("\n") == 1


class Script:
    """A group whose processes end as a script says: for each its code, whether it was ready, and how long it lived."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: tuple[int, bool, int], reload: bool = False) -> None:
        self.pauses: list[int | None] = []
        self.group = Group(["never"], 1, 1000, Sources() if reload else None)
        self._ends = iter(ends)
        monkeypatch.setattr(self.group, "_start", self._start)
        monkeypatch.setattr(self.group, "_until_ended", self._until_ended)
        monkeypatch.setattr(self.group, "_stirring", self._stirring)

    async def _start(self) -> Child:
        process: Any = SimpleNamespace(pid=7, send_signal=lambda _: None)
        nothing: Any = None
        return Child(process, nothing, nothing)

    async def _until_ended(self, child: Child) -> int:
        code, ready, lived = next(self._ends)
        child.ready = ready
        child.started -= lived
        self.group.any_ready |= ready
        return code

    async def _stirring(self, limit: int | None) -> None:
        self.pauses.append(limit)

    def run(self) -> int:
        return asyncio.run(self.group.run())


def test_pauses_grow_to_a_limit_and_begin_anew_after_a_good_run(monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = [(-9, True, 1)] * 7
    script = Script(monkeypatch, *crashes, (3, True, 60), (1, False, 0), (0, True, 0))
    assert script.run() == Exit.DONE
    assert script.pauses == [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 1000, 2000]


def test_with_reload_only_a_change_helps_what_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, (1, False, 0), (-11, True, 5), (0, True, 0), reload=True)
    assert script.run() == Exit.DONE
    assert script.pauses == [None, 2000]


@pytest.mark.parametrize(("code", "exit_code"), [(7, Exit.STORE), (-6, Exit.FAILED), (99, Exit.FAILED)])
def test_a_group_that_never_was_ready_gives_up(code: int, exit_code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, (code, False, 0))
    assert script.run() == exit_code
    assert script.pauses == []


def test_a_system_without_room_for_a_process_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(monkeypatch, (0, True, 0))
    begin, refusals = script.group._start, iter([True, True])  # noqa: SLF001 - where the system says no

    async def start() -> Child:
        if next(refusals, False):
            raise BlockingIOError("no room")
        return await begin()

    monkeypatch.setattr(script.group, "_start", start)
    assert script.run() == Exit.DONE
    assert script.pauses == [30_000, 30_000]
    assert caplog.text.count("no worker process could be started: no room; trying again in 30s") == 2


def test_signals_without_a_name_are_told_by_number() -> None:
    assert how_it_ended(-64) in ("killed by SIGRTMAX", "killed by signal 64")
    assert how_it_ended(-11) == "killed by SIGSEGV"
    assert how_it_ended(3) == "exited with code 3"


def test_sources_are_new_other_or_gone(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    inner = tmp_path / "package" / "inner.py"
    inner.write_text("1")
    sources = Sources()
    sources.add([str(inner), str(tmp_path / "redrive.toml")])
    assert sources.changed() == []
    (tmp_path / "package" / "new.py").touch()
    (tmp_path / "package" / "data.txt").touch()
    assert sources.changed() == [str(tmp_path / "package" / "new.py")]
    inner.write_text("22")
    (tmp_path / "redrive.toml").touch()
    assert sources.changed() == [str(inner), str(tmp_path / "redrive.toml")]
    (tmp_path / "tasks.py").unlink()
    assert sources.changed() == [str(tmp_path / "tasks.py")]
    shutil.rmtree(tmp_path / "package")
    assert sources.changed() == [str(inner), str(tmp_path / "package" / "new.py")]
