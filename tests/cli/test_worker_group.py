"""`redrive worker run --processes N` without processes: what becomes of those that end, and of the group.

Real processes are in proofs/cli/test_worker_group.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blockbuster import BlockBuster

from redrive import Redrive
from redrive.cli import worker_group, worker_session
from redrive.cli.exits import Exit
from redrive.cli.worker_group import Child, Group, how_it_ended
from redrive.cli.worker_line import ChildLine, own_files
from redrive.cli.worker_logs import set_up_logging
from redrive.cli.worker_reload import Sources
from redrive.cli.worker_session import Session
from tests.support.cli import PATIENCE, here
from tests.support.in_process import Unguarded, own_logging
from tests.support.signals import Signals


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blockbuster: BlockBuster) -> None:
    blockbuster.deactivate()  # a supervisor looks at files in its loop, and a line is a pair of sockets with room
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    (tmp_path / "tasks.py").write_text("from redrive import Redrive\n\napp = Redrive()\n")


# -- options and ends --------------------------------------------------------------------------------------------------


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


def test_a_group_starts_its_processes_with_the_options_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[list[str], int, int, bool]] = []

    class Noted(Group):
        def __init__(self, command: list[str], processes: int, grace: int, sources: Sources | None) -> None:
            made.append((command, processes, grace, sources is not None))

        async def run(self) -> Exit:
            return Exit.DONE

    monkeypatch.setattr(worker_group, "Group", Noted)
    options = ("--queues", "a,b", "-c", "3", "--grace", "2s", "--log-level", "error", "--json-logs", "--until-idle")
    with own_logging():
        assert here(capsys, "worker", "run", "tasks:app", "--processes", "2", "-v", *options).code == Exit.DONE
        assert here(capsys, "worker", "run", "tasks:app", "--reload").code == Exit.DONE
    (command, *more), (_, *reloaded) = made
    assert " ".join(command[1:]) == (
        "-m redrive worker run tasks:app --grace 2000ms --log-level error --queues a,b --concurrency 3"
        " --json-logs --until-idle --verbose"
    )
    assert (more, reloaded) == ([2, 2000, False], [1, 30_000, True])


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


def test_own_files_are_those_of_the_user() -> None:
    found = own_files()
    assert os.path.realpath(__file__) in found
    assert not [file for file in found if "site-packages" in file or "/redrive/cli/" in file]


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


# -- lines between the supervisor and its processes --------------------------------------------------------------------


class Process:
    """A worker process that is a task: it has its end of the line, and hears signals as they are sent to it."""

    def __init__(self, pid: int, line: ChildLine, life: Life) -> None:
        self.pid = pid
        self.line = line
        self.heard: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self.told: list[tuple[int, str]] = []
        self.noted = asyncio.Event()
        self._life = asyncio.create_task(self._live(life))

    async def _live(self, life: Life) -> int:
        code = await life(self)
        # As the end of a process does.
        if self.line._writer is not None:  # noqa: SLF001 - of nobody else
            self.line._writer.close()  # noqa: SLF001 - as above
        self.line._socket.close()  # noqa: SLF001 - as above
        return code

    async def wait(self) -> int:
        return await self._life

    def send_signal(self, number: signal.Signals) -> None:
        self.heard.put_nowait(number)

    async def report_death(self, pid: int, *, why: str) -> None:
        """As the app does whose store takes it."""
        self.told.append((pid, why))
        self.noted.set()


Life = Callable[[Process], Awaitable[int]]


class Crew:
    """Starts such processes instead of real ones, each with the next of the lives, the last again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lives: Life) -> None:
        self.started: list[Process] = []
        self.words: list[str] = []
        self._lives = lives
        self._patch = monkeypatch
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._start)
        monkeypatch.setattr(worker_group, "FIRST_PAUSE", 0)
        # Not ours to ignore: it is a process of its own that may write to another's terminal.
        monkeypatch.setattr("redrive.cli.worker_line.signal.signal", lambda *_: None)

    async def _start(self, *words: str, pass_fds: tuple[int], **_: object) -> Process:
        self.words = list(words)
        life = self._lives[min(len(self.started), len(self._lives) - 1)]
        self.started.append(Process(100 + len(self.started), ChildLine(os.dup(pass_fds[0])), life))
        return self.started[-1]

    def run(self, processes: int = 1, *, grace: int = 1000, sources: Sources | None = None) -> int:
        # From look to look at the sources, and at most so long for the last words of a process.
        self._patch.setattr(worker_group, "LOOK_EVERY", PATIENCE if sources is None else 0)

        async def run() -> int:
            return await Group(["worker"], processes, grace, sources).run()

        return asyncio.run(run())


def app_of(process: Process) -> Redrive:
    app: Any = process
    return app  # type: ignore[no-any-return]  # all that a line asks of an app


async def killed(process: Process) -> int:
    process.line.ready()
    return -signal.SIGKILL


async def done(process: Process) -> int:
    process.line.ready()
    return 0


async def ends_by_a_signal(process: Process) -> int:
    process.line.ready()
    await process.heard.get()
    return 0


@pytest.mark.usefixtures("signals")
def test_a_process_that_dies_is_replaced_and_the_next_is_told_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def catches_up(process: Process) -> int:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(process.line._socket, told.set)  # noqa: SLF001 - before it attends
        await told.wait()
        loop.remove_reader(process.line._socket)  # noqa: SLF001 - as above
        await process.line.catch_up(app_of(process))
        return await done(process)

    crew = Crew(monkeypatch, killed, catches_up)
    assert crew.run() == Exit.DONE
    assert "worker process 100 ended: killed by SIGKILL; another is started in 0s" in caplog.text
    assert [process.told for process in crew.started] == [[], [(100, "killed by SIGKILL")]]
    assert crew.words[:2] == ["worker", "--line"]


@pytest.mark.usefixtures("signals")
def test_a_death_is_told_to_one_that_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = asyncio.Event()

    async def attends(process: Process) -> int:
        process.line.ready()
        ready.set()
        attending = asyncio.create_task(process.line.attend(app_of(process)))
        await process.noted.wait()
        attending.cancel()
        return 0

    async def dies_beside_it(process: Process) -> int:
        await ready.wait()
        return 3

    crew = Crew(monkeypatch, attends, dies_beside_it, done)
    assert crew.run(2) == Exit.DONE
    assert crew.started[0].told == [(101, "exited with code 3")]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_ctrl_c_is_passed_on_as_often_as_it_is_typed(
    times: int, monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> None:
    heard: list[signal.Signals] = []

    async def hears(process: Process) -> int:
        process.line.ready()
        for _ in range(times):
            signals.send(signal.SIGINT)
            heard.append(await process.heard.get())
        return Exit.INTERRUPTED

    assert Crew(monkeypatch, hears).run() == Exit.INTERRUPTED
    assert heard == [signal.SIGINT] * times


def test_what_starts_while_the_group_ends_is_told_so(monkeypatch: pytest.MonkeyPatch, signals: Signals) -> None:
    async def ends_the_group(process: Process) -> int:
        process.line.ready()
        signals.send(signal.SIGTERM)
        await process.heard.get()
        return 0

    crew = Crew(monkeypatch, ends_the_group, ends_by_a_signal)
    assert crew.run(3) == Exit.DONE


def test_a_process_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_group, "LAST_WORDS", 0)
    monkeypatch.setattr(worker_group, "OWN_TIME", 0)

    async def deaf(process: Process) -> int:
        process.line.ready()
        signals.send(signal.SIGTERM)
        while await process.heard.get() is not signal.SIGKILL:
            pass
        return -signal.SIGKILL

    assert Crew(monkeypatch, deaf).run(grace=0) == Exit.FAILED
    assert "worker process 100 did not end in time; killing it" in caplog.text


@pytest.mark.usefixtures("signals")
def test_others_end_when_the_first_can_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot_start(process: Process) -> int:
        process.line.loaded_from([])
        return Exit.NOT_FOUND

    async def starts_slowly(process: Process) -> int:
        assert await process.heard.get() is signal.SIGTERM
        return -signal.SIGTERM

    assert Crew(monkeypatch, cannot_start, starts_slowly).run(2) == Exit.NOT_FOUND


@pytest.mark.usefixtures("signals")
def test_a_source_that_changes_replaces_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "package").mkdir()
    source = tmp_path / "package" / "tasks.py"
    source.write_text("1")
    sources, known = Sources(), asyncio.Event()
    add = sources.add

    def added(files: Iterable[str]) -> None:
        add(files)
        known.set()

    monkeypatch.setattr(sources, "add", added)

    async def is_changed(process: Process) -> int:
        process.line.loaded_from([str(source)])
        process.line.ready()
        await known.wait()
        source.write_text("22")
        await process.heard.get()
        return 0

    assert Crew(monkeypatch, is_changed, done).run(sources=sources) == Exit.DONE
    assert "tasks.py changed; starting anew" in caplog.text


def test_a_worker_ends_in_good_order_when_its_supervisor_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_session, "Guard", Unguarded)
    monkeypatch.setattr("redrive.cli.worker_line.signal.signal", lambda *_: None)
    itself = SimpleNamespace(getpid=os.getpid, kill=lambda _, number: signals.send(number))
    monkeypatch.setattr(worker_session, "os", itself)
    ours, theirs = socket.socketpair()
    app = Redrive("memory:")

    @app.handler("q")
    async def handle() -> None: ...

    async def supervise() -> bytes:
        reader, writer = await asyncio.open_connection(sock=ours)
        words = await reader.readline()
        writer.close()
        return words

    async def serve() -> int:
        supervising = asyncio.create_task(supervise())
        line = ChildLine(theirs.detach())
        code = await Session(app, 1000, line).serve(None, until_idle=False)
        assert line._writer is not None  # noqa: SLF001 - the process would end here
        line._writer.close()  # noqa: SLF001 - as above
        assert json.loads(supervising.result()) == {"ready": True}
        return code

    with own_logging():
        set_up_logging(debug=False)
        assert asyncio.run(serve()) == Exit.DONE
    assert "the supervisor is gone" in capsys.readouterr().err
