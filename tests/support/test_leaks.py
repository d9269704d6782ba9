"""A leak is an error in the teardown of the test that made it, and nowhere else."""

from __future__ import annotations

import threading

import pytest

from tests.support import leaks

pytest_plugins = ["pytester"]

LEAKS = {
    "socket": ("keep(socket.create_server(('127.0.0.1', 0)))", "descriptor * (socket ('127.0.0.1', *"),
    "socket_in_a_cycle": ("cycle(socket.create_server(('127.0.0.1', 0)))", "*unclosed <socket.socket *"),
    "file": ("keep(open(__file__))", "descriptor * (*test_a_leak*.py)"),
    "process": ("keep(start('sleep', '60'))", "process * (sleep 60)"),
    "ended_process": ("keep(start('true'))", "process * (*)"),
    "process_in_a_cycle": ("cycle(start('sleep', '60'))", "process * (sleep 60)"),
    "thread": ("threading.Thread(target=go.wait, name='stray', daemon=True).start()", "thread 'stray'"),
    "folder": ("keep(tempfile.TemporaryDirectory())", "temporary folder *"),
    "folder_in_a_cycle": ("cycle(tempfile.TemporaryDirectory())", "temporary folder *"),
    "loop": ("keep(asyncio.new_event_loop())", "*descriptor * (anon_inode:*eventpoll*"),
    "task": ("keep(stranded())", "<Task pending name='stray' *"),
    "warning_in_a_cycle": ("cycle(Warns())", "*ResourceWarning: left open*"),
}
"""How it is made, and what is told of it."""
START = """
import asyncio, os, socket, subprocess, tempfile, threading, warnings
import pytest

kept, started, go = [], [], threading.Event()

class Warns:
    def __del__(self):
        warnings.warn("left open", ResourceWarning)

def keep(this):
    kept.append(this)

def start(*command):
    process = subprocess.Popen(command)
    started.append(process.pid)
    return process

def cycle(*these):
    ring = [*these]
    ring.append(ring)

def stranded():
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(60), name="stray")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return task

@pytest.fixture(scope="module")
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

@pytest.fixture
def own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server

def test_shared(server, own):
    pass

def test_failing(own):
    assert 0
"""
EACH = """
def test_leaky_{0}():
    {1}

def test_failing_{0}():
    {1}
    assert 0

def test_after_{0}():
    pass
"""
END = """
def test_end():
    go.set()
    for pid in started:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    for one in kept:
        for name in ("close", "cleanup", "wait"):
            getattr(one, name, bool)()
    kept.clear()
"""


def test_a_leak_is_charged_to_its_own_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE", 0)
    # A collection in the middle of a test would blame the same test, but in its call.
    monkeypatch.setattr(leaks, "THRESHOLDS", (0, 0, 0))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("from tests.support.leaks import pytest_configure")
    each = [EACH.format(name, body) for name, (body, _) in LEAKS.items()]
    pytester.makepyfile("\n".join([START, *each, END]))
    result = pytester.runpytest_inprocess("-Werror", "-v")
    count = len(LEAKS)
    result.assert_outcomes(passed=2 * count + 2, failed=count + 1, errors=2 * count)
    told = result.stdout
    for name, (_, message) in LEAKS.items():
        for test in (f"test_leaky_{name}", f"test_failing_{name}"):
            told.fnmatch_lines([f"*::{test} ERROR*"])
            told.fnmatch_lines([f"_* ERROR at teardown of {test} _*", f"*{message}"], consecutive=False)


def test_a_thread_that_is_about_to_end_is_no_leak() -> None:
    threading.Timer(0.02, bool).start()
