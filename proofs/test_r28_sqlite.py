"""R28 SQLite used wrongly. Many processes never see a lock error, and forks keep the file sound."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.binding import STDLIB, is_risky
from tests.support.misuse import FORKS, OUTLIVES, TRANSACTIONS, WARNS, WITHOUT_APSW
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import CROWD, Crowd, proof_size

SIZE = f"{CROWD[proof_size()].processes} processes, {CROWD[proof_size()].transactions:,} transactions each"

BINDINGS = ("stdlib", "apsw")


Process = subprocess.Popen[str]
Script = Callable[..., Process]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts one. None outlives the test."""
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as started:

        def script(text: str, *args: object) -> Process:
            command = [sys.executable, "-c", text, *map(str, args)]
            process = started.enter_context(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment(),
                    stdin=pipe,
                    stdout=pipe,
                    stderr=pipe,
                    text=True,
                    start_new_session=True,
                )
            )
            started.callback(_kill, process)
            return process

        yield script


def _kill(process: Process) -> None:
    """With its children, should there be any."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def heard(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def output(process: Process) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, f"{process.returncode}: {out}{err}"
    return out


async def sound(path: Path, binding: str = "stdlib") -> dict[str, tuple[int, int, int]]:
    """Ready, leased and done by queue, after a check that nothing is damaged and all counters are right."""
    store = await SqliteStore(path, binding=binding).open()  # type: ignore[arg-type]
    try:
        checkup = await store.check()
        assert checkup.findings == ()
        assert checkup.left_out == ()
        return {row.queue: (row.ready, row.leased, row.done) for row in (await store.tally()).queues}
    finally:
        await store.close()


# --- many processes ---


async def crowd(script: Script, folder: Path, size: Crowd, mixture: str) -> None:
    path, bindings = folder / "redrive.db", mixture.split()
    processes = [
        script(TRANSACTIONS, path, bindings[number % len(bindings)], f"p{number}", size.transactions)
        for number in range(size.processes)
    ]
    for process in processes:
        assert heard(process) == "open"
    for process in processes:
        tell(process)
    # A lock that somebody waited for in vain is an error in that process, and so here.
    counts = [[int(word) for word in output(process).split()] for process in processes]
    put, done = (sum(column) for column in zip(*counts, strict=True))
    assert put == size.processes * len(range(0, size.transactions, 3))
    assert done == put, "each leases after it has put, so something is always ready"
    assert await sound(path, bindings[0]) == {"q": (0, 0, put)}


@pytest.mark.timeout(300)
async def test_r28_many_processes_never_hear_of_a_lock(script: Script, folder: Path) -> None:
    """With two SQLites, an old one and a new one, at once."""
    await crowd(script, folder, CROWD[proof_size()], "stdlib apsw")


# --- forks ---


async def forks(script: Script, folder: Path, binding: str, leave: str, children: int) -> None:
    path = folder / "redrive.db"
    assert output(script(FORKS, path, binding, leave, children)) == "over\n"
    assert await sound(path, binding) == {"q": (0, 0, 2 + 30 * children)}
    assert [found.name for found in folder.iterdir()] == ["redrive.db"], "everybody cleaned up"


LEAVES = ["close", "die", "exit"]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("leave", LEAVES)
async def test_r28_a_fork_after_open(script: Script, folder: Path, binding: str, leave: str) -> None:
    await forks(script, folder, binding, leave, 10)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_r28_a_child_goes_on_when_its_parent_has_closed(script: Script, folder: Path, binding: str) -> None:
    """The last one to close removes the log. The parent is not the last one, and must know that."""
    process = script(OUTLIVES, folder / "redrive.db", binding)
    assert heard(process) == "child"
    tell(process)
    assert output(process) == "over\n"
    assert await sound(folder / "redrive.db", binding) == {"q": (200, 0, 0)}


async def test_r28_without_the_extra_the_error_names_it(script: Script, tmp_path: Path) -> None:
    first, second, library = output(script(WITHOUT_APSW, tmp_path / "redrive.db")).splitlines()
    for said in (first, second):
        assert said.startswith("binding: ")
        assert 'pip install "redrive[sqlite]"' in said
    assert library.endswith("(stdlib)")


@pytest.mark.skipif(not is_risky(STDLIB), reason="Python's own SQLite is a safe one")
def test_r28_a_process_warns_once_of_a_risky_version(script: Script, tmp_path: Path) -> None:
    process = script(WARNS, tmp_path / "redrive")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert err.count("WARNING") == 1
    assert STDLIB.version in err
