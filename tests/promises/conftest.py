"""Promises run on every store: in memory with all their values, on each durable store with one of them."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.lab import lab, memory_lab

__all__ = ["lab", "memory_lab"]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    yield
    calls: list[Any] = metafunc._calls  # noqa: SLF001 - what was made can be had in no other way
    by_store: dict[object, list[Any]] = {}
    for call in calls:
        by_store.setdefault(call.params.get("lab", "memory"), []).append(call)
    number = zlib.crc32(metafunc.function.__name__.encode())
    kept = [each if store == "memory" else [each[number % len(each)]] for store, each in by_store.items()]
    calls[:] = [call for each in kept for call in each]
