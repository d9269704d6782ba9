"""What makes a run begin sooner: tests that it leaves out are not made.

pytest makes a test before it looks at its marks. Those of the servers are more than all that a quick run has.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import settings

from tests.support.families import Call

SLOW = "slow"
QUICK = "quick"
"""The profile of hypothesis for a run without slow tests."""


def know_handlers() -> None:
    """As Python 3.12 does: what is no number cannot be the number of a handler.

    Before, each question for a handler failed to make a number of it, and wrote out why, with all that it holds. A loop
    asks four times whenever it runs something, and a test has it run up to five things: a tenth of what it takes.
    """
    if sys.version_info >= (3, 12):
        return
    convert: Any = vars(signal)["_int_to_enum"]

    def quickly(value: object, kind: type) -> object:
        return convert(value, kind) if isinstance(value, int) else value

    vars(signal)["_int_to_enum"] = quickly


@functools.cache
def left_out(config: pytest.Config) -> frozenset[str]:
    """Marks that no test of this run has. None where slow tests may run, or where somebody asks for a test by name."""
    expression = str(config.getoption("markexpr"))
    terms = [term.strip() for term in expression.split(" and ")]
    plain = "(" not in expression and " or " not in expression
    if not plain or f"not {SLOW}" not in terms or any("::" in arg for arg in config.args):
        return frozenset()
    return frozenset(term.removeprefix("not ") for term in terms if term.startswith("not "))


def without_slow(config: pytest.Config) -> bool:
    return SLOW in left_out(config)


def choose_examples(config: pytest.Config) -> None:
    """A quick run tries fewer examples of what holds for all. The whole suite, which goes before a change, has them."""
    if without_slow(config):
        settings.load_profile(QUICK)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Nothing for a test or class that is left out whole: by its own marks, or those of its module."""
    out = left_out(collector.config)
    if not out or not name.lower().startswith("test"):
        return None
    of_its_own = getattr(obj, "pytestmark", ())
    marks = [*(of_its_own if isinstance(of_its_own, list) else ()), *collector.iter_markers()]
    return [] if any(mark.name in out for mark in marks) else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Of its parameters only those that are not left out. A last one stays, or pytest would make a test without any."""
    yield
    calls: list[Any] = metafunc._calls  # noqa: SLF001 - what was made can be had in no other way
    if metafunc.module.__name__.split(".")[:2] != ["tests", "stores"]:
        spare_twins(calls)
    if calls and (out := left_out(metafunc.config)):
        calls[:] = [call for call in calls if not any(mark.name in out for mark in call.marks)] or calls[:1]


def spare_twins(calls: Sequence[Call]) -> None:
    """What is tried in memory with the same values need not be tried on a file as well, in a quick run.

    That both stores are alike is for the conformance suite to say: all of it in a whole run, a sample in a quick one.
    """
    tried = [call.params for call in calls if SLOW not in {mark.name for mark in call.marks}]
    for call in calls:
        on_file = [name for name, value in call.params.items() if value == "sqlite"]
        if any({**call.params, name: "memory"} in tried for name in on_file):
            call.marks.append(pytest.mark.slow.mark)
