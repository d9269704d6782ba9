"""A test of what lies above the stores has all its values in memory and on SQLite, and one on a server."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support.families import choose
from tests.support.stores import SERVERS, STORES


@dataclass
class Given:
    params: dict[str, object]
    marks: list[pytest.Mark] = field(default_factory=list)


def often(name: str, *, values: int = 3, fixture: str = "lab") -> Counter[object]:
    """On which stores how many values are tried without being proved."""
    calls = [Given({fixture: store, "value": value}) for value in range(values) for store in STORES]
    choose(name, calls)
    return Counter(call.params[fixture] for call in calls if not call.marks)


@pytest.mark.parametrize("values", [1, 2, 3])
def test_one_server_gets_one(values: int) -> None:
    found = often("test_odd_values", values=values)
    assert (found["memory"], found["sqlite"], found.total()) == (values, values, 2 * values + 1)


def test_servers_take_turns() -> None:
    found = sum((often(f"test_{n}", values=1) for n in range(100)), Counter[object]())
    assert min(found["postgres"], found["redis"]) > 30


def test_all_are_proved_and_nothing_else_is_marked() -> None:
    calls = [Given({"lab": store}) for store in STORES]
    choose("test_odd_values", calls)
    assert [mark.name for call in calls for mark in call.marks] == ["prove"]


@pytest.mark.parametrize(("name", "fixture"), [("test_gap12_values", "lab"), ("test_odd_values", "store")])
def test_promises_with_a_number_and_servers_that_are_meant_are_left_alone(name: str, fixture: str) -> None:
    assert set(often(name, fixture=fixture).values()) == {3}


def test_what_is_tried_on_servers_alone_is_left_alone() -> None:
    calls = [Given({"on_store": store}) for store in sorted(SERVERS)]
    choose("test_odd_values", calls)
    assert [call.marks for call in calls] == [[], []]
