"""A run leaves out what its marks say, and nothing else is left out before it is seen."""

import signal
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.support.quick import left_out, spare_twins


@dataclass(eq=False)
class Asked:
    """As much of a configuration as is asked for."""

    expression: str
    args: tuple[str, ...]

    def getoption(self, name: str) -> str:
        assert name == "markexpr"
        return self.expression


def asked(expression: str, *args: str) -> pytest.Config:
    return cast("pytest.Config", Asked(expression, args))


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("not slow and not prove", {"slow", "prove"}),
        ("not slow", {"slow"}),
        ("not slow and hypothesis", {"slow"}),
        ("not prove", set()),
        ("prove", set()),
        ("", set()),
        ("slow and not prove", set()),
        ("not slow or prove", set()),
        ("not (slow and prove)", set()),
        ("not slow and not (prove and slow)", set()),
    ],
)
def test_marks_are_left_out_only_where_no_test_with_them_can_run(expression: str, names: set[str]) -> None:
    assert left_out(asked(expression, "tests")) == names


def test_a_test_that_is_asked_for_by_name_is_made() -> None:
    """So that pytest says that its marks leave it out, and not that there is none."""
    assert left_out(asked("not slow and not prove", "tests/stores/test_redis.py::test_put")) == frozenset()


@dataclass
class Given:
    params: dict[str, object]
    marks: list[pytest.Mark] = field(default_factory=list)


def spared(*calls: Given) -> list[dict[str, object]]:
    spare_twins(calls)
    return [call.params for call in calls if [mark.name for mark in call.marks] == ["slow"]]


def test_what_is_tried_in_memory_is_slow_on_a_file() -> None:
    calls = [Given({"kind": kind, "n": n}) for kind in ("memory", "sqlite", "redis") for n in (1, 2)]
    assert spared(*calls) == [{"kind": "sqlite", "n": 1}, {"kind": "sqlite", "n": 2}]
    assert spared(Given({"kind": "sqlite", "n": 1}), Given({"kind": "memory", "n": 2})) == []
    both = Given({"here": "memory", "there": "sqlite"}), Given({"here": "sqlite", "there": "memory"})
    assert spared(*both) == []
    slow = pytest.mark.slow.mark
    assert spared(Given({"kind": "memory"}, [slow]), Given({"kind": "sqlite"})) == [{"kind": "memory"}]


class Handler:
    """What it holds is nobody's concern."""

    def __call__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        raise AssertionError("nobody has to write it out in order to know that it is no number")


def test_a_handler_is_told_from_a_number_without_a_look_at_it() -> None:
    handler = Handler()
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        assert signal.signal(signal.SIGUSR2, before) is handler
    assert signal.getsignal(signal.SIGUSR2) is before
    assert isinstance(signal.getsignal(signal.SIGTERM), signal.Handlers), "a number still becomes its name"
