"""R28: SQLite used wrongly: by many processes, across forks, through two libraries, over a network, in a risky version.

Whoever could lose something by it is refused or kept apart; nobody who waits for a lock hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.errors import BindingConflict, UnsafeFileSystem
from redrive.stores.sqlite import SqliteStore, checkpoint, ground
from redrive.stores.sqlite import forks as process_forks
from redrive.stores.sqlite.binding import SAFE_SINCE, STDLIB, Connection, Stdlib, is_risky
from redrive.stores.url import store_from_url
from tests.stores.sqlite_kit import lane, new
from tests.support.folders import quick_folder
from tests.support.misuse import FORKS, OUTLIVES, TRANSACTIONS, WARNS, WITHOUT_APSW
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import CROWD, Crowd, Size, proof_size

BINDINGS = ("stdlib", "apsw")
MIXTURES = ("stdlib", "apsw", "stdlib apsw")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


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


@pytest.mark.slow
async def test_r28_many_processes_never_hear_of_a_lock_smoke(script: Script, folder: Path) -> None:
    await crowd(script, folder, CROWD[Size.SMOKE], "stdlib apsw")


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mixture", MIXTURES)
async def test_r28_many_processes_never_hear_of_a_lock(script: Script, folder: Path, mixture: str) -> None:
    """Also of two SQLites, an old one and a new one, at once."""
    await crowd(script, folder, CROWD[proof_size()], mixture)


# --- forks ---


async def forks(script: Script, folder: Path, binding: str, leave: str, children: int) -> None:
    path = folder / "redrive.db"
    assert output(script(FORKS, path, binding, leave, children)) == "over\n"
    assert await sound(path, binding) == {"q": (0, 0, 2 + 30 * children)}
    assert [found.name for found in folder.iterdir()] == ["redrive.db"], "everybody cleaned up"


LEAVES = ["close", "die", "exit"]


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("leave", LEAVES)
async def test_r28_a_fork_after_open_smoke(script: Script, folder: Path, binding: str, leave: str) -> None:
    await forks(script, folder, binding, leave, 2)


@pytest.mark.prove
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("leave", LEAVES)
async def test_r28_a_fork_after_open(script: Script, folder: Path, binding: str, leave: str) -> None:
    await forks(script, folder, binding, leave, 40)


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDINGS)
async def test_r28_a_child_goes_on_when_its_parent_has_closed(script: Script, folder: Path, binding: str) -> None:
    """The last one to close removes the log. The parent is not the last one, and must know that."""
    process = script(OUTLIVES, folder / "redrive.db", binding)
    assert heard(process) == "child"
    tell(process)
    assert output(process) == "over\n"
    assert await sound(folder / "redrive.db", binding) == {"q": (200, 0, 0)}


# A real fork would take pytest along: what follows does what the process does before and after one.


async def test_r28_a_fork_does_not_wait_for_who_waits_for_it(tmp_path: Path) -> None:
    """A second fork finds the writer about to open its connection again, which waits until nobody forks."""
    store = await SqliteStore(tmp_path / "redrive.db").open()
    state = process_forks._forks  # noqa: SLF001 - as said above
    begun, asked, ready, over = (threading.Event() for _ in range(4))

    def fork_twice() -> None:
        state.before()
        state.after_in_parent()
        with state.gate:
            begun.set()
            asked.wait(20)
            state.before()
            ready.set()
            over.wait(20)
            state.after_in_parent()

    forking = threading.Thread(target=fork_twice, daemon=True)
    forking.start()
    assert await asyncio.to_thread(begun.wait, 20)
    putting = asyncio.ensure_future(store.put([new("one")]))
    await asyncio.wait({putting}, timeout=0.01)
    while not lane(store)._queue.empty():  # noqa: SLF001 - until the writer has taken it
        await asyncio.wait({putting}, timeout=0.01)
    asked.set()
    assert await asyncio.to_thread(ready.wait, 20), "the fork hangs"
    assert not putting.done()
    over.set()
    assert (await putting).added == ("one",)
    await store.close()
    await asyncio.to_thread(forking.join, 20)


async def test_r28_a_fork_waits_for_a_store_that_is_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore(tmp_path / "redrive.db").open()
    state = process_forks._forks  # noqa: SLF001 - as said above
    writer, closing, go = lane(store), threading.Event(), threading.Event()
    close, order = writer._close, list[str]()  # noqa: SLF001 - the moment at which it matters

    def slowly(connection: Connection | None) -> None:
        closing.set()
        go.wait(20)
        close(connection)
        order.append("closed")

    def fork() -> None:
        state.before()
        order.append("forked")
        state.after_in_parent()

    monkeypatch.setattr(writer, "_close", slowly)
    leaving = asyncio.ensure_future(store.close())
    assert await asyncio.to_thread(closing.wait, 20)
    forking = threading.Thread(target=fork, daemon=True)
    forking.start()
    while not order and writer._queue.empty():  # noqa: SLF001 - until the fork has asked the writer, or has not
        await asyncio.wait({leaving}, timeout=0.01)
    go.set()
    await leaving
    await asyncio.to_thread(forking.join, 20)
    assert order == ["closed", "forked"]


# --- one library for each file and process ---


@pytest.mark.parametrize("first", ["stdlib", "apsw"])
@pytest.mark.parametrize("name", ["itself", "link", "folder link", "relative"])
async def test_r28_a_second_library_on_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, name: str
) -> None:
    second = "apsw" if first == "stdlib" else "stdlib"
    place = tmp_path / "place"
    place.mkdir()
    path = place / "redrive.db"
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(place)
    monkeypatch.chdir(tmp_path)
    other = {
        "itself": str(path),
        "link": str(tmp_path / "link.db"),
        "folder link": str(tmp_path / "folder" / "redrive.db"),
        "relative": "place/../place/redrive.db",
    }[name]
    store = await SqliteStore(path, binding=first).open()  # type: ignore[arg-type]
    await store.put([NewItem("one", "q", b"{}")])
    with pytest.raises(BindingConflict) as caught:
        await store_from_url(f"sqlite:///{other}?binding={second}").open()
    for part in (str(path), first, second):
        assert part in str(caught.value)
    # The same one is welcome, and so is whoever does not mind which.
    for wanted in (first, "auto"):
        again = await SqliteStore(other, binding=wanted).open()  # type: ignore[arg-type]
        assert again.info().library.endswith(f"({first})")
        await again.put([NewItem(wanted, "q", b"{}")])
        await again.close()
    await store.close()
    after = await SqliteStore(other, binding=second).open()  # type: ignore[arg-type]
    assert (await after.tally()).queues[0].ready == 3
    await after.close()


@pytest.mark.slow
async def test_r28_without_the_extra_the_error_names_it(script: Script, tmp_path: Path) -> None:
    first, second, library = output(script(WITHOUT_APSW, tmp_path / "redrive.db")).splitlines()
    for said in (first, second):
        assert said.startswith("binding: ")
        assert 'pip install "redrive[sqlite]"' in said
    assert library.endswith("(stdlib)")


# --- where it lies ---


async def test_r28_a_network_file_system_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel's list of mounts is faked; that it is read rightly is tested in tests/stores/test_ground.py."""
    place = tmp_path / "place"
    place.mkdir()
    device = place.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 {os.major(device)}:{os.minor(device)} / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(ground, "MOUNTS", str(mounts))
    ground._warn_allowed.cache_clear()  # noqa: SLF001 - as in a new process
    with pytest.raises(UnsafeFileSystem, match="nfs4"):
        await SqliteStore(place / "redrive.db").open()
    assert list(place.iterdir()) == []
    store = await SqliteStore(place / "redrive.db", network="allow").open()
    await store.put([NewItem("one", "q", b"{}")])
    await store.close()
    assert [record.levelno for record in caplog.records if "nfs4" in record.getMessage()] == [logging.WARNING]


# --- a version with the bug ---


class Watched:
    """Whether somebody else could have written at the moments at which the log was moved."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writable: list[bool] = []
        move = checkpoint.Checkpoints._move  # noqa: SLF001 - the moment at which it matters

        def watched(checkpoints: checkpoint.Checkpoints) -> bool:
            self.writable.append(_can_write(path))
            return move(checkpoints)

        monkeypatch.setattr(checkpoint.Checkpoints, "_move", watched)
        monkeypatch.setattr(checkpoint, "LOOK", 1)
        monkeypatch.setattr(checkpoint, "AFTER", 1)


def _can_write(path: Path) -> bool:
    """Asked through the same library: in this process there must be no other one."""
    other = STDLIB.connect(str(path), 0)
    try:
        other.execute("begin immediate")
        other.execute("rollback")
    except STDLIB.errors:
        return False
    finally:
        other.close()
    return True


@pytest.mark.parametrize(("version", "risky"), [("3.51.2", True), ("3.40.1", True), ("3.51.3", False), ("4.0", False)])
async def test_r28_a_risky_version_moves_the_log_only_while_nobody_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, risky: bool
) -> None:
    monkeypatch.setattr(Stdlib, "version", property(lambda self: version))
    checkpoint._warn.cache_clear()  # noqa: SLF001 - as in a new process
    assert is_risky(STDLIB) is risky
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    for path in paths:
        watched = Watched(path, monkeypatch)
        store = await SqliteStore(path, binding="stdlib").open()
        for number in range(5):
            await store.put([NewItem(f"i-{number}", "q", b"x" * 5_000)])
        await store.close()
        assert len(watched.writable) >= 5
        # A safe version does most of it beside the writers, and only the last part under the lock.
        assert any(watched.writable) is not risky
        monkeypatch.setattr(checkpoint.Checkpoints, "_move", checkpoint.Checkpoints._move)  # noqa: SLF001
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (1 if risky else 0)
    assert all(version in text and 'pip install "redrive[sqlite]"' in text for text in warnings)


def test_r28_safe_is_what_sqlite_says_is_safe() -> None:
    assert SAFE_SINCE == (3, 51, 3)


@pytest.mark.slow
@pytest.mark.skipif(not is_risky(STDLIB), reason="Python's own SQLite is a safe one")
def test_r28_a_process_warns_once_of_a_risky_version(script: Script, tmp_path: Path) -> None:
    process = script(WARNS, tmp_path / "redrive")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert err.count("WARNING") == 1
    assert STDLIB.version in err
