"""A run of pytest leaves nothing behind, however it ends.

No server, guard or folder; and its workers share one server of each kind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.support.servers import processes, run
from tests.support.servers.guard import ROOT
from tests.support.servers.redis import private_redis
from tests.support.servers.server import wait_until

PATIENCE = 120
"""Seconds. Only a failing test waits so long; an inner run starts a dozen processes, and the machine may be busy."""
CONFTEST = "from tests.support.servers.run import announce\nannounce()\n"

# Each of two tests tells what it uses, and then never ends.
TESTS = """
import json, os, time
from pathlib import Path

import pytest

from tests.support.servers import run, shared
from tests.support.servers.redis import private_redis


@pytest.mark.parametrize("number", [1, 2])
def test_for_ever(number):
    postgres, redis = shared.postgres().url, shared.redis().url
    with private_redis() as server:
        facts = dict(test=os.getpid(), postgres=postgres, redis=redis, private=server.pid)
        facts["folder"] = str(run.current().folder)
        draft = Path(f"draft-{number}")
        draft.write_text(json.dumps(facts))
        draft.rename(f"facts-{number}")
        while True:
            time.sleep(0.05)  # not signal.pause: a signal that comes just before it is never noticed
"""


class Facts(msgspec.Struct):
    test: int
    postgres: str
    redis: str
    private: int
    folder: str


class Inner:
    """A run of pytest inside this one that knows nothing of ours."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_inner.py").write_text(TESTS)
        (folder / "pytest.ini").write_text("[pytest]\n")
        ours = ("PYTEST_", "REDRIVE_TEST_", run.VARIABLE)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *options]
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._folder = folder

    def told(self) -> list[Facts]:
        return [msgspec.json.decode(each.read_bytes(), type=Facts) for each in self._folder.glob("facts-*")]

    def wait_for(self, count: int) -> list[Facts]:
        """What so many tests tell, as soon as they do."""

        def is_over() -> bool:
            return self.process.poll() is not None or len(self.told()) == count

        wait_until(is_over, f"{count} inner tests", PATIENCE)
        told = self.told()
        assert len(told) == count, (self._folder / "output").read_text()
        return told

    def end(self, by: signal.Signals) -> None:
        self.process.send_signal(by)
        self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Inner]]:
    """Starts an inner run. It and its workers, which go on for seconds when xdist is killed, end with the test."""
    started: list[Inner] = []

    def start(*options: str) -> Inner:
        started.append(Inner(tmp_path, *options))
        return started[-1]

    yield start
    for inner in started:
        inner.end(signal.SIGKILL)
        for facts in inner.told():
            processes.send(facts.test, signal.SIGKILL)


def users_of(folder: str) -> list[int]:
    """Processes that were started for this folder: guards name it in their command, and servers work in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            named = folder.encode() in (place / "cmdline").read_bytes()
            if named or str((place / "cwd").readlink()).startswith(folder):
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def starter_of_postgres(folder: str) -> int:
    """The process whose guard runs the shared one."""
    (postmaster,) = [pid for pid in users_of(folder) if b"\0-D\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return parent(parent(postmaster))


def nothing_is_left(folder: str) -> bool:
    return not users_of(folder) and not Path(folder).exists()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_run_leaves_nothing_behind(start: Callable[..., Inner], by: signal.Signals) -> None:
    inner = start("-p", "no:xdist")
    (facts,) = inner.wait_for(1)
    # The processes of PostgreSQL, two Redis servers, a guard for each, and one for the folder.
    assert len(users_of(facts.folder)) > 7
    assert processes.alive(facts.private)
    inner.end(by)
    wait_until(lambda: nothing_is_left(facts.folder), "all servers, guards and folders are gone", PATIENCE)


def test_workers_share_servers_that_end_with_the_controller(start: Callable[..., Inner]) -> None:
    inner = start("-n", "2")
    one, two = inner.wait_for(2)
    assert one.test != two.test
    assert (one.postgres, one.redis) == (two.postgres, two.redis)
    # A worker that is killed takes its private server along, and no shared one, even if it was the one to start it.
    starter = one if starter_of_postgres(one.folder) == one.test else two
    processes.send(starter.test, signal.SIGKILL)
    wait_until(lambda: not processes.alive(starter.private), "a private server ends with its test", PATIENCE)
    psycopg.connect(starter.postgres).close()
    inner.end(signal.SIGKILL)
    for facts in (one, two):
        processes.send(facts.test, signal.SIGKILL)
    wait_until(lambda: nothing_is_left(one.folder), "all servers, guards and folders are gone", PATIENCE)


def test_a_server_does_not_outlive_its_guard() -> None:
    with private_redis() as server:
        pid = server.pid
        assert pid is not None
        (guard,) = processes.children(os.getpid())[-1:]
        assert pid in processes.children(guard)
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not processes.alive(pid), "the server is gone", PATIENCE)
