"""`redrive worker run --processes N` without processes: what becomes of those that end, and of the group.

Real processes are in proofs/cli/test_worker_group.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.cli import worker_group
from redrive.cli.exits import Exit
from redrive.cli.worker_group import Child, Group, how_it_ended
from redrive.cli.worker_line import own_files
from redrive.cli.worker_reload import Sources
from tests.support.cli import here
from tests.support.in_process import own_logging


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def _start(self, number: int) -> Child:
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

    async def start(number: int) -> Child:
        if next(refusals, False):
            raise BlockingIOError("no room")
        return await begin(number)

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
