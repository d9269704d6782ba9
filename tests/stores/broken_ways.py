"""Bugs that are planted in the Python of a store in the same way, whatever the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from redrive.core.item import History, Instant, Item, NewItem
from redrive.core.select import Selection
from redrive.core.verbs import Answer, Page, PutResult, Settlement, Verdict
from redrive.stores import bodies
from tests.stores.planting import Patch


def puts_one_by_one(store: type) -> Patch:
    right: Any = vars(store)["put"]

    async def put(self: object, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        results = [await right(self, [item], within) for item in items]
        added = tuple(item_id for result in results for item_id in result.added)
        return PutResult(added, tuple(item_id for result in results for item_id in result.already))

    return lambda monkeypatch: monkeypatch.setattr(store, "put", put)


def reencodes_payloads(store: type) -> Patch:
    right: Any = vars(store)["put"]

    async def put(self: object, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        result: PutResult = await right(self, [_again(item) for item in items], within)
        return result

    return lambda monkeypatch: monkeypatch.setattr(store, "put", put)


def _again(item: NewItem) -> NewItem:
    try:
        return structs.replace(item, payload=json.dumps(json.loads(item.payload)).encode())
    except (ValueError, RecursionError):
        return item


def finds_by_offset(store: type) -> Patch:
    right: Any = vars(store)["find"]

    async def find(
        self: object, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        start = int(cursor or 0)
        items = (await right(self, selection, 1_000, oldest=oldest)).items[start : start + limit + 1]
        return Page(items[:limit], str(start + limit) if len(items) > limit else None, len(items))

    return lambda monkeypatch: monkeypatch.setattr(store, "find", find)


def loses_headers(module: ModuleType) -> Patch:
    """Of the module that takes letters in."""
    right: Callable[[Sequence[History], Instant], list[History]] = vars(module)["prepared"]

    def prepared(histories: Sequence[History], now: Instant) -> list[History]:
        return [_without_headers(history) for history in right(histories, now)]

    return lambda monkeypatch: monkeypatch.setattr(module, "prepared", prepared)


def _without_headers(history: History) -> History:
    terms = history.item.terms
    bare = None if terms is None else structs.replace(terms, headers=())
    return structs.replace(history, item=structs.replace(history.item, terms=bare))


def applied(settlements: Sequence[Settlement], answers: Sequence[Answer]) -> list[Settlement]:
    """For a second step after the first."""
    pairs = zip(settlements, answers, strict=True)
    return [settlement for settlement, answer in pairs if answer.verdict is Verdict.APPLIED]


def shows_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed as it lies there."""

    async def whole(_: bodies.Bodies, items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(structs.replace(item, payload=bytes(item.payload)) for item in items)

    monkeypatch.setattr(bodies.Bodies, "whole", whole)
