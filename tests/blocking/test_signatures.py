"""The facade cannot drift from the async API: a method, parameter or default on one side only fails here."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self, assert_type

import pytest

import redrive
from redrive import blocking
from redrive.app import Redrive
from redrive.blocking import Amended, History, Item, Page, _alerts, _audit, _letters, _replays, _schedules, _views
from redrive.core.verbs import Tally, WorkerBeat
from redrive.engine.ids import ItemId
from redrive.observe.alerts.api import Alerts
from redrive.office.audit import Audit
from redrive.office.letters import Letters
from redrive.office.records import Record
from redrive.office.replay import Replayed
from redrive.office.replays import Replays
from redrive.office.schedules import Schedules
from redrive.office.views import Views
from tests.blocking.signatures import differences

TWINS: dict[object, object] = {
    Redrive: blocking.Redrive,
    Letters: _letters.Letters,
    Replays: _replays.Replays,
    Schedules: _schedules.Schedules,
    Views: _views.Views,
    Audit: _audit.Audit,
    Alerts: _alerts.Alerts,
    AsyncIterator[Record]: Iterator[Record],
}


def test_both_apps_have_the_same_methods() -> None:
    assert differences(Redrive, blocking.Redrive, TWINS) == []


def test_both_offices_have_the_same_methods() -> None:
    assert differences(Letters, _letters.Letters, TWINS) == []


def test_both_have_the_same_replays() -> None:
    assert differences(Replays, _replays.Replays, TWINS) == []


def test_both_manage_schedules_alike() -> None:
    assert differences(Schedules, _schedules.Schedules, TWINS) == []


def test_both_keep_views_alike() -> None:
    assert differences(Views, _views.Views, TWINS) == []


def test_both_have_the_same_audit() -> None:
    assert differences(Audit, _audit.Audit, TWINS) == []


def test_both_have_the_same_alerts() -> None:
    assert differences(Alerts, _alerts.Alerts, TWINS) == []


def test_both_are_made_alike() -> None:
    assert inspect.signature(Redrive) == inspect.signature(blocking.Redrive)


def test_both_have_the_same_attributes() -> None:
    first, second = Redrive("memory:"), blocking.Redrive("memory:")
    assert {name for name in vars(first) if not name.startswith("_")} == {
        name for name in vars(second) if not name.startswith("_")
    }
    assert type(first.events) is type(second.events)


def test_both_modules_offer_the_same_names() -> None:
    assert blocking.__all__ == redrive.__all__
    for name in redrive.__all__:
        assert (getattr(blocking, name) is getattr(redrive, name)) is (name != "Redrive")


def types_are_exact(app: blocking.Redrive) -> None:
    """Never called: the type checker reads it."""
    assert_type(app.open(), blocking.Redrive)
    assert_type(app.enqueue("q"), ItemId)
    assert_type(app.enqueue_many("q", []), list[ItemId])
    assert_type(app.get("x"), Item)
    assert_type(app.history("x"), History)
    assert_type(app.tally(), Tally)
    assert_type(app.workers(), tuple[WorkerBeat, ...])
    assert_type(app.cancel("x", reason="r"), Amended)
    assert_type(app.letters, _letters.Letters)
    assert_type(app.letters.find(), Page)
    assert_type(app.letters.replay("x", reason="r"), Replayed)


# -- the comparison has teeth ----------------------------------------------------------------------------------------


class Result:
    pass


class BlockingResult:
    pass


class Original:
    limit = 3

    async def put(self, name: str, *, delay: int = 0) -> str:
        """Puts it."""
        return name

    async def result(self) -> Result:
        return Result()

    def plain(self) -> int:
        return 1

    @property
    def office(self) -> Result:
        """The office."""
        return Result()

    async def __aenter__(self) -> Self:
        return self


class Same:
    limit = 3

    def put(self, name: str, *, delay: int = 0) -> str:
        """Puts it. And blocks."""
        return name

    def result(self) -> BlockingResult:
        return BlockingResult()

    def plain(self) -> int:
        return 1

    @property
    def office(self) -> BlockingResult:
        """The office."""
        return BlockingResult()

    def __enter__(self) -> Self:
        return self


def other_put(self: object, name: str, *, delay: int = 1) -> str:
    """Puts it."""
    return name


def renamed_put(self: object, title: str, *, delay: int = 0) -> str:
    """Puts it."""
    return title


def positional_put(self: object, name: str, delay: int = 0) -> str:
    """Puts it."""
    return name


def retyped_put(self: object, name: str, *, delay: float = 0) -> str:
    """Puts it."""
    return name


def put_of_bytes(self: object, name: str, *, delay: int = 0) -> bytes:
    """Puts it."""
    return name.encode()


def short_put(self: object, name: str) -> str:
    """Puts it."""
    return name


def undocumented_put(self: object, name: str, *, delay: int = 0) -> str:
    """Does something else."""
    return name


async def awaited_put(self: object, name: str, *, delay: int = 0) -> str:
    """Puts it."""
    return name


def annotated(original: type) -> Any:
    def result(self: object) -> Result:
        return Result()

    return result


FAKES: dict[object, object] = {Original: Same, Result: BlockingResult}


def test_a_true_twin_has_no_differences() -> None:
    assert differences(Original, Same, FAKES) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("put", other_put, "put: delay is 1 by default instead of 0"),
        ("put", renamed_put, "put: parameters ['self', 'title', 'delay'] instead of"),
        ("put", positional_put, "put: delay is positional or keyword instead of keyword-only"),
        ("put", retyped_put, "put: delay is annotated <class 'float'> instead of <class 'int'>"),
        ("put", put_of_bytes, "put: return is annotated <class 'bytes'> instead of <class 'str'>"),
        ("put", short_put, "put: parameters ['self', 'name'] instead of"),
        ("put", undocumented_put, "put: the docstring does not begin like the original's"),
        ("put", awaited_put, "put: it must not be awaited"),
        ("put", property(lambda self: "x"), "put: a property instead of a function"),
        ("result", annotated(Original), "result: return is annotated"),
        ("office", Same.plain, "office: a function instead of a property"),
        ("limit", 4, "limit: 4 instead of 3"),
        ("more", Same.plain, "more is not in the original"),
    ],
)
def test_every_difference_is_found(name: str, value: object, said: str) -> None:
    changed = type("Changed", (Same,), {name: value, "__enter__": Same.__enter__})
    assert any(found.startswith(said) for found in differences(Original, changed, FAKES))


@pytest.mark.parametrize("name", ["put", "office", "limit", "__enter__"])
def test_a_method_on_one_side_only_is_found(name: str) -> None:
    left = {key: value for key, value in vars(Same).items() if key != name and not key.startswith("__dict")}
    left.pop("__weakref__", None)
    assert differences(Original, type("Short", (), left), FAKES) == [f"{name} is missing"]
