"""Packing and unpacking beside the transactions: in a thread, and only when something is large or packed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from redrive.core.item import History, Item, NewItem
from redrive.core.verbs import Settlement
from redrive.errors import StoreError
from redrive.stores import packing
from redrive.stores.aside import aside

Judged = tuple[Item, StoreError | None]
"""An item, and why its payload must not be used."""


async def packed_items(items: Sequence[NewItem], above: int) -> Sequence[NewItem]:
    if not packing.any_heavy(items, above):
        return items
    return await aside(lambda: packing.packed_items(items, above))


async def packed_settlements(settlements: Sequence[Settlement], above: int) -> Sequence[Settlement]:
    if not packing.heavy_end(settlements, above):
        return settlements
    return await aside(lambda: [packing.packed_settlement(settlement, above) for settlement in settlements])


async def packed_histories(histories: Sequence[History], above: int) -> Sequence[History]:
    if max([len(history.item.payload) for history in histories], default=0) <= above:
        return histories
    return await aside(lambda: [_packed_history(history, above) for history in histories])


def _packed_history(history: History, above: int) -> History:
    payload = history.item.payload
    if len(payload) <= above:
        return history
    return replace(history, item=replace(history.item, payload=packing.pack(payload)))


async def judged(items: Sequence[Item]) -> list[Judged]:
    """Each unpacked, or as it is with what is wrong with it."""
    return await aside(lambda: [_judged(item) for item in items])


def _judged(item: Item) -> Judged:
    try:
        return packing.unpacked(item), None
    except StoreError as error:
        return item, error


async def whole(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """For those who look: unpacked, or with its flaw."""
    if not packing.any_packed(items) and not packing.any_packed_result(items):
        return items
    return await aside(lambda: tuple([_whole(item) for item in items]))


def _whole(item: Item) -> Item:
    try:
        return packing.unpacked(item)
    except StoreError as error:
        # A result that cannot be read must not be taken for one; `wait` tells by the flaw that there was one.
        return flawed(replace(item, result=None), error)


def flawed(item: Item, wrong: StoreError) -> Item:
    return replace(item, payload=_left_of(item.payload), flaw=str(wrong))


def _left_of(body: object) -> bytes:
    """Damage can make a text or a number of it."""
    if isinstance(body, bytes):
        return bytes(body)
    return b"" if body is None else str(body).encode(errors="surrogateescape")
