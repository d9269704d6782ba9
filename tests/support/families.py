"""Where tests of what lies above the stores are tried: in memory and on SQLite with all their values, and on a server.

That stores are alike is for the conformance suite to say, of each of them. So one server is enough here, and on it one
of the values: which, the test's name decides. `make prove` tries all of them on every server.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

import pytest

from tests.support.stores import SERVERS

ABOVE = ("lab", "app", "on_store")
"""Fixtures that give a test a store for its own sake. Whoever names a server otherwise means it."""
NAMED = re.compile(r"test_[a-z]+\d+_")
"""A promise that is known by its number is tried on all of them."""


class Call(Protocol):
    """A test with its values, as pytest has it."""

    @property
    def params(self) -> Mapping[str, object]: ...

    @property
    def marks(self) -> list[pytest.Mark]: ...


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """To be imported by the conftest of a folder of such tests."""
    yield
    choose(metafunc.function.__name__, metafunc._calls)  # noqa: SLF001 - what was made can be had in no other way


def choose(name: str, calls: Sequence[Call]) -> None:
    beside = [call for call in calls if any(call.params.get(fixture) in SERVERS for fixture in ABOVE)]
    # What is tried on servers alone is about them.
    if NAMED.match(name) or not beside or len(beside) == len(calls):
        return
    kept = beside[zlib.crc32(name.encode()) % len(beside)]
    for call in beside:
        if call is not kept:
            call.marks.append(pytest.mark.prove.mark)
