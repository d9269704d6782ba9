"""Users' projects, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest

from tests.support.warm_child import IMPORTED, PYTEST
from tests.support.warm_python import WarmPython

pytest_plugins = ["pytester"]

TASKS = """
from redrive import Policy, Redrive, blocking, constant

app = Redrive("sqlite:///shop.db")
shop = blocking.Redrive("sqlite:///shop.db")
sent = []

@app.handler("emails", policy=Policy(constant("1h"), max_attempts=3))
async def send(to):
    if to == "nobody":
        raise ConnectionError("no such mailbox")
    sent.append(to)

@shop.handler("orders")
def order(n):
    return n * 2

async def sign_up(name):
    await app.enqueue("emails", {"to": name})
"""

ASYNC_TESTS = """
import pytest
from redrive.testing import FakeClock, assert_dead, assert_done, assert_enqueued, assert_not_enqueued, drain
from tasks import app, sent, sign_up

{mark}

@pytest.fixture(autouse=True)
def sandboxed(redrive_sandbox):
    assert redrive_sandbox(app) is app

async def test_the_program_enqueues():
    await assert_not_enqueued(app)
    await sign_up("ada")
    await assert_enqueued(app, "emails", {{"to": "ada"}}, count=1)

async def test_the_handler_gives_up(redrive_clock):
    assert isinstance(redrive_clock, FakeClock)
    await sign_up("nobody")
    await drain(app)
    await assert_dead(app, "emails", error=ConnectionError, reason="max_attempts")
    assert redrive_clock.monotonic() == 2 * 3_600_000

async def test_an_app_of_its_own(redrive_app, redrive_clock):
    @redrive_app.handler("numbers")
    def double(n):
        return n * 2

    await redrive_app.enqueue("numbers", 4, delay="1d")
    await drain(redrive_app)
    await assert_done(redrive_app, "numbers", result=8)
    assert redrive_clock.monotonic() == 24 * 3_600_000
"""

SYNC_TESTS = """
import asyncio
from redrive import testing
from redrive.testing.blocking import assert_done, assert_enqueued, drain
from tasks import app, shop, sign_up

def test_a_blocking_app_of_its_own(redrive_blocking_app, redrive_clock):
    @redrive_blocking_app.handler("numbers")
    def double(n):
        return n * 2

    redrive_blocking_app.enqueue("numbers", 4, delay="1d")
    drain(redrive_blocking_app)
    assert_done(redrive_blocking_app, "numbers", result=8)
    assert redrive_clock.monotonic() == 24 * 3_600_000

def test_the_programs_blocking_app(redrive_sandbox):
    redrive_sandbox(shop)
    item_id = shop.enqueue("orders", 21)
    drain(shop)
    assert shop.wait(item_id) == 42

def test_the_programs_async_app(redrive_sandbox):
    redrive_sandbox(app)
    asyncio.run(sign_up("ada"))
    assert_enqueued(app, "emails", {"to": "ada"})

def test_both_in_one_test_share_the_clock(redrive_sandbox, redrive_clock):
    for each in (app, shop):
        redrive_sandbox(each)
    shop.enqueue("orders", 21, delay="1h")
    asyncio.run(sign_up("ada"))
    drain(shop)
    assert redrive_clock.monotonic() == 3_600_000
    assert len(drain(app).done) == 1

def test_the_app_of_its_own_in_a_test_without_a_plugin(redrive_app):
    @redrive_app.handler("numbers")
    async def double(n):
        return n * 2

    async def program():
        with testing.inline(redrive_app):
            return await redrive_app.wait(await redrive_app.enqueue("numbers", 4))

    assert asyncio.run(program()) == 8
"""


Run = Callable[..., pytest.RunResult]
STRICT = ("-W", "error", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:hypothesispytest")
"""Of the plugins around us only those that a project asked for."""


@pytest.fixture
def run(pytester: pytest.Pytester, warm_python: WarmPython) -> Run:
    def run(*options: str) -> pytest.RunResult:
        pytester.makepyfile(tasks=TASKS)
        ran = warm_python.run(PYTEST, *STRICT, "-W", IMPORTED, *options, cwd=pytester.path, env=os.environ)
        assert not (pytester.path / "shop.db").exists(), "tests do not touch the program's own store"
        return pytest.RunResult(ran.returncode, ran.stdout.splitlines(), ran.stderr.splitlines(), 0)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", ("-o", "asyncio_mode=auto")),
        ("pytestmark = pytest.mark.asyncio(loop_scope='module')", ("-o", "asyncio_mode=strict")),
    ],
    ids=["auto", "strict, one loop for all"],
)
def test_a_project_with_async_tests(pytester: pytest.Pytester, run: Run, mark: str, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_tasks=ASYNC_TESTS.format(mark=mark))
    scope = ("-o", "asyncio_default_fixture_loop_scope=function")  # unset, the other plugin warns
    run(*scope, *options).assert_outcomes(passed=3)


@pytest.mark.slow
def test_a_project_without_a_plugin_for_async_tests(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_tasks=SYNC_TESTS)
    run("-p", "no:asyncio").assert_outcomes(passed=5)


@pytest.mark.slow
def test_the_fixtures_are_listed_with_what_they_are(run: Run) -> None:
    result = run("-p", "no:asyncio", "--fixtures")
    result.stdout.fnmatch_lines(
        [
            "redrive_clock -- *",
            "    The clock of the other fixtures.",
            "redrive_app -- *",
            "redrive_blocking_app -- *",
            "redrive_sandbox -- *",
        ]
    )


@pytest.mark.slow
def test_a_failed_assertion_shows_the_test_and_what_is_there(pytester: pytest.Pytester) -> None:
    """In a new interpreter: pytest rewrites the assertions of what it imports, and warns of what it cannot rewrite."""
    pytester.makepyfile(
        test_tasks="""
        from redrive.testing.blocking import assert_enqueued

        def test_it(redrive_blocking_app):
            redrive_blocking_app.queue("emails")
            redrive_blocking_app.enqueue("emails", {"to": "bob"})
            assert_enqueued(redrive_blocking_app, "emails", {"to": "ada"})
        """
    )
    result = pytester.runpytest_subprocess(*STRICT, "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ['E * - payload  {"to":"ada"}', 'E * + payload  {"to":"bob"}', "test_tasks.py:6: AssertionError"]
    )
    result.stdout.no_fnmatch_line("*redrive/testing/*.py*")


def test_pytest_finds_the_plugin() -> None:
    (found,) = entry_points(group="pytest11", name="redrive")
    assert found.value == "redrive.testing.plugin"


@pytest.mark.slow
def test_the_plugin_imports_nothing_of_the_kit() -> None:
    """Every project where redrive is installed pays for it, in every run."""
    code = """
import sys, pytest
before = set(sys.modules)
import redrive.testing.plugin
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours = ["redrive", "redrive._late", "redrive._version", "redrive.testing", "redrive.testing.plugin"]
    assert done.stdout.strip() == repr(ours)
