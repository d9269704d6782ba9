"""R28: SQLite used wrongly: by many processes, across forks, through two libraries, over a network, in a risky version.

Whoever could lose something by it is refused or kept apart; nobody who waits for a lock hears of it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.errors import BindingConflict, UnsafeFileSystem
from redrive.stores.sqlite import SqliteStore, checkpoint, ground
from redrive.stores.sqlite.binding import SAFE_SINCE, STDLIB, Stdlib, is_risky
from redrive.stores.url import store_from_url
from tests.support.folders import quick_folder
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import CROWD, Crowd, Size, proof_size

needs_apsw = pytest.mark.skipif(find_spec("apsw") is None, reason="no apsw")
BINDINGS = ["stdlib", pytest.param("apsw", marks=needs_apsw)]
MIXTURES = ["stdlib", pytest.param("apsw", marks=needs_apsw), pytest.param("stdlib apsw", marks=needs_apsw)]
LIMIT = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


def script(text: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", text, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def output(process: subprocess.Popen[str], limit: float = LIMIT) -> str:
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
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

TRANSACTIONS = """
import asyncio, sys
from redrive.core.decide import ToDone
from redrive.core.item import NewItem
from redrive.core.verbs import LeaseRequest, Settlement, Verdict, Want
from redrive.stores.sqlite import SqliteStore, checkpoint

path, binding, name, transactions = sys.argv[1:]
checkpoint.LOOK = checkpoint.AFTER = 50  # the more of them, the more can go wrong

async def main():
    put = done = 0
    store = await SqliteStore(path, binding=binding).open()
    print("open", flush=True)
    sys.stdin.readline()
    for n in range(0, int(transactions), 3):
        put += len((await store.put([NewItem(f"{name}-{n}", "q", b"x" * 300)])).added)
        leases = await store.lease(LeaseRequest(name, (Want("q", 1, 600_000, 3),), f"{name}-{n}"))
        ends = [Settlement(item.id, item.deliveries, ToDone()) for item in leases.items]
        answers = (await store.settle(ends)).answers
        done += [answer.verdict for answer in answers].count(Verdict.APPLIED)
    await store.close()
    print(put, done)

asyncio.run(main())
"""


async def crowd(folder: Path, size: Crowd, mixture: str) -> None:
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
async def test_r28_many_processes_never_hear_of_a_lock_smoke(folder: Path) -> None:
    await crowd(folder, CROWD[Size.SMOKE], "stdlib" if find_spec("apsw") is None else "stdlib apsw")


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mixture", MIXTURES)
async def test_r28_many_processes_never_hear_of_a_lock(folder: Path, mixture: str) -> None:
    """Also of two SQLites, an old one and a new one, at once."""
    await crowd(folder, CROWD[proof_size()], mixture)


# --- forks ---

FORKS = """
import asyncio, os, sys, threading
from redrive import Item, Redrive
from redrive.stores.sqlite import SqliteStore

path, binding, leave, children = sys.argv[1:]
app = Redrive(SqliteStore(path, binding=binding), log=False)

@app.handler("q", concurrency=10)
async def work(item: Item) -> int:
    return os.getpid()

async def enqueue(name, count):
    await asyncio.gather(*(app.enqueue("q", id=f"{name}-{n}") for n in range(count)))

async def child(number):
    await enqueue(f"child-{number}", 10)
    assert await app.get("first-0")
    await app.run(until_idle=True)
    assert await app.wait(f"child-{number}-0", timeout=30) is not None
    if leave == "close":
        await app.close()

def forked(number, run):
    pid = os.fork()
    if pid == 0:
        try:
            run(child(number))
        except BaseException as error:
            print("child", number, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        if leave == "exit":
            sys.exit(0)
        os._exit(0)
    return pid

def check(pids):
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def in_new_loop(coroutine):
    asyncio.new_event_loop().run_until_complete(coroutine)

async def while_running():
    # The fork falls into the middle of writes.
    await app.open()
    await enqueue("first", 1)
    for number in range(int(children)):
        writing = asyncio.ensure_future(enqueue(f"parent-{number}", 20))
        await asyncio.wait({writing}, timeout=0.002)
        pid = forked(number, in_new_loop)
        await writing
        await asyncio.to_thread(check, [pid])
    await enqueue("last", 1)
    await app.run(until_idle=True)
    await app.close()

def between_runs():
    # A child that ends as programs do takes asyncio's loops along, so there is none: each step has its own.
    asyncio.run(app.open())
    asyncio.run(enqueue("first", 1))
    for number in range(int(children)):
        pid = forked(number, asyncio.run)
        asyncio.run(enqueue(f"parent-{number}", 20))
        check([pid])
    asyncio.run(enqueue("last", 1))
    asyncio.run(app.run(until_idle=True))
    asyncio.run(app.close())

if leave == "exit":
    between_runs()
else:
    asyncio.run(while_running())
print("over")
"""


async def forks(folder: Path, binding: str, leave: str, children: int) -> None:
    path = folder / "redrive.db"
    assert output(script(FORKS, path, binding, leave, children)) == "over\n"
    assert await sound(path, binding) == {"q": (0, 0, 2 + 30 * children)}
    assert [found.name for found in folder.iterdir()] == ["redrive.db"], "everybody cleaned up"


LEAVES = ["close", "die", "exit"]


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("leave", LEAVES)
async def test_r28_a_fork_after_open_smoke(folder: Path, binding: str, leave: str) -> None:
    await forks(folder, binding, leave, 2)


@pytest.mark.prove
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("leave", LEAVES)
async def test_r28_a_fork_after_open(folder: Path, binding: str, leave: str) -> None:
    await forks(folder, binding, leave, 40)


OUTLIVES = """
import asyncio, os, sys
from redrive.core.item import NewItem
from redrive.stores.sqlite import SqliteStore

path, binding = sys.argv[1:]
store = SqliteStore(path, binding=binding)

async def put(name):
    await store.put([NewItem(f"{name}-{n}", "q", b"x" * 3_000) for n in range(50)])

with asyncio.Runner() as runner:
    runner.run(store.open())
    runner.run(put("before"))
    heard, told = os.pipe()
    if os.fork() == 0:
        own = asyncio.new_event_loop()
        own.run_until_complete(put("child-first"))
        print("child", flush=True)
        os.read(heard, 1)
        own.run_until_complete(put("child-last"))
        os._exit(0)
    runner.run(put("parent"))
    sys.stdin.readline()
    runner.run(store.close())
    os.write(told, b"x")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print("over")
"""


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDINGS)
async def test_r28_a_child_goes_on_when_its_parent_has_closed(folder: Path, binding: str) -> None:
    """The last one to close removes the log. The parent is not the last one, and must know that."""
    process = script(OUTLIVES, folder / "redrive.db", binding)
    assert heard(process) == "child"
    tell(process)
    assert output(process) == "over\n"
    assert await sound(folder / "redrive.db", binding) == {"q": (200, 0, 0)}


# --- one library for each file and process ---


@needs_apsw
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
    for part in (other if name == "itself" else "redrive.db" if name != "link" else "link.db", first, second):
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


WITHOUT_APSW = """
import asyncio, sys
from redrive import Redrive
from redrive.errors import MissingExtra
from redrive.stores.sqlite import SqliteStore

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name == "apsw" or name.startswith("apsw."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
sys.modules.pop("apsw", None)

async def main():
    for store in (SqliteStore(sys.argv[1], binding="apsw"), Redrive(f"sqlite:///{sys.argv[1]}?binding=apsw")):
        try:
            await store.open()
        except MissingExtra as error:
            print(error)
    async with Redrive(f"sqlite:///{sys.argv[1]}", log=False) as app:
        app.queue("q")
        await app.enqueue("q")
        print(app.info().library)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_r28_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
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


WARNS = """
import asyncio, logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
from redrive.core.item import NewItem
from redrive.stores.sqlite import SqliteStore, checkpoint
checkpoint.LOOK = checkpoint.AFTER = 1

async def main():
    for n in range(6):
        store = await SqliteStore(f"{sys.argv[1]}-{n % 2}.db", binding="stdlib").open()
        await store.put([NewItem(f"i-{n}-{m}", "q", b"x" * 100) for m in range(10)])
        await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not is_risky(STDLIB), reason="Python's own SQLite is a safe one")
def test_r28_a_process_warns_once_of_a_risky_version(tmp_path: Path) -> None:
    process = script(WARNS, tmp_path / "redrive")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert err.count("WARNING") == 1
    assert STDLIB.version in err
