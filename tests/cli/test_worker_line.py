"""The line between a supervisor and its processes: readiness, deaths, sources, signals. The processes are tasks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blockbuster import BlockBuster
from prometheus_client import CollectorRegistry

from redrive import Redrive
from redrive.cli import worker_group, worker_session
from redrive.cli.exits import Exit
from redrive.cli.worker_group import Group
from redrive.cli.worker_health import GroupHealth
from redrive.cli.worker_line import ChildLine
from redrive.cli.worker_logs import set_up_logging
from redrive.cli.worker_reload import Sources
from redrive.cli.worker_session import Session
from tests.support.cli import PATIENCE
from tests.support.in_process import Unguarded, own_logging
from tests.support.signals import Signals


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blockbuster: BlockBuster) -> None:
    blockbuster.deactivate()  # a supervisor looks at files in its loop, and a line is a pair of sockets with room
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    (tmp_path / "tasks.py").write_text("from redrive import Redrive\n\napp = Redrive()\n")


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
def test_with_a_health_port_each_process_has_the_port_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(monkeypatch, killed, done)

    async def run() -> Group:
        group = Group(["worker"], 1, 1000)
        group.health_port = 8080
        await group.run()
        return group

    group = asyncio.run(run())
    assert (len(crew.started), crew.words[:3]) == (2, ["worker", "--health-port", "8081"])
    assert (group.died, group.ready) == (1, 0)


@pytest.mark.parametrize(
    ("ready", "ending", "status"),
    [(2, False, "healthy"), (1, False, "degraded"), (0, False, "unhealthy"), (2, True, "unhealthy")],
)
def test_a_group_is_ready_while_one_of_its_processes_is(ready: int, ending: bool, status: str) -> None:
    group: Any = SimpleNamespace(ready=ready, processes=2, died=3, is_ending=lambda: ending)
    health, registry = GroupHealth(group), CollectorRegistry()
    assert health.report() == {"status": status, "processes": 2, "ready": ready}
    health.register(registry)
    assert registry.get_sample_value("redrive_worker_processes") == ready
    assert registry.get_sample_value("redrive_worker_process_deaths_total") == 3


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
