"""Which stores a test of what lies above the stores runs on: memory with all its values, a durable one with one.

The conformance suite shows that stores are alike. So one durable store is enough here, and on it one of the values: a
hash of the test's name chooses both. The other combinations are not generated.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol, TypeVar

import pytest

from tests.support.stores import SERVERS

ABOVE = ("lab", "app", "on_store", "kind", "client", "each_url")
"""Fixtures that give a test a store for its own sake. Whoever names a server otherwise means it."""
NAMED = re.compile(r"test_[a-z]+\d+_")
"""A promise that is known by its number runs on all stores, with all values."""
DURABLE = SERVERS | {"sqlite"}
C = TypeVar("C", bound="Call")


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
    calls: list[Call] = metafunc._calls  # type: ignore[assignment]  # noqa: SLF001 - what was made can be had in no other way
    calls[:] = chosen(metafunc.function.__name__, calls)


def chosen(name: str, calls: Sequence[C]) -> list[C]:
    """Memory is the base, with all values; without it SQLite. A test of servers alone is about them."""
    if NAMED.match(name):
        return list(calls)
    for others in (DURABLE, SERVERS):
        beside = [call for call in calls if any(str(call.params.get(fixture)) in others for fixture in ABOVE)]
        if beside and len(beside) < len(calls):
            beside.pop(zlib.crc32(name.encode()) % len(beside))
            dropped = set(map(id, beside))
            return [call for call in calls if id(call) not in dropped]
    return list(calls)
