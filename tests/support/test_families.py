"""A test of what lies above the stores has all its values in memory, and one of them on a durable store."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support.families import DURABLE, chosen
from tests.support.stores import SERVERS, STORES


@dataclass(eq=False)
class Given:
    params: dict[str, object]
    marks: list[pytest.Mark] = field(default_factory=list)


def often(name: str, *, values: int = 3, fixture: str = "lab", stores: tuple[str, ...] = STORES) -> Counter[object]:
    """How many values are tried on each store."""
    calls = [Given({fixture: store, "value": value}) for value in range(values) for store in stores]
    return Counter(call.params[fixture] for call in chosen(name, calls))


@pytest.mark.parametrize("values", [1, 2, 3])
def test_one_durable_store_gets_one_value(values: int) -> None:
    found = often("test_odd_values", values=values)
    assert (found["memory"], found.total()) == (values, values + 1)


def test_stores_take_turns() -> None:
    found = sum((often(f"test_{n}", values=1) for n in range(100)), Counter[object]())
    assert min(found[store] for store in DURABLE) > 20


def test_without_memory_sqlite_has_all_values() -> None:
    found = often("test_odd_values", stores=("sqlite", "postgres", "redis"))
    assert (found["sqlite"], found.total()) == (3, 4)


@pytest.mark.parametrize(("name", "fixture"), [("test_gap12_values", "lab"), ("test_odd_values", "store")])
def test_promises_with_a_number_and_stores_that_are_meant_are_left_alone(name: str, fixture: str) -> None:
    assert set(often(name, fixture=fixture).values()) == {3}


def test_servers_alone_are_left_alone() -> None:
    assert often("test_odd_values", stores=tuple(SERVERS)).total() == 6
