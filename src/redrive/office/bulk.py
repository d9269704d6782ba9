"""Bulk acts: apply a change to chosen items in batches, with progress and an early end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct

from redrive.core import acts
from redrive.core.acts import (
    Amended,
    Cancel,
    Change,
    Discard,
    Refusal,
    Skipped,
)
from redrive.core.item import Item
from redrive.core.select import And, Ids, Match, Selection
from redrive.core.states import State
from redrive.engine.ids import new_id
from redrive.engine.letter_source import open_letters
from redrive.engine.store_retry import retry_unknown
from redrive.office.bites import items_of, joined, pages
from redrive.office.selection import Chosen
from redrive.stores.base import Store

BATCH = 2000
"""Items between two checks of whether to stop."""
LETTERS = 100
"""Letters that are read and discarded in one write."""


class Done(Struct, frozen=True):
    """`asked`: of those changed, the ones that were only asked to stop and still run. `left` were not reached.

    `duplicates` and `kept` are those of a replay by payload, see office.replay.Replayed; else None and empty.
    """

    amended: Amended = Amended()
    asked: tuple[str, ...] = ()
    left: int = 0
    duplicates: tuple[Skipped, ...] | None = None
    kept: tuple[Skipped, ...] = ()


Act = Callable[[list[str]], Awaitable[Amended | Done]]


def would_do(chosen: Sequence[Chosen]) -> Done:
    """Result of a dry run: what the act would do to the items as they are now."""
    skipped = tuple([Skipped(one.id, *one.refused) for one in chosen if one.refused is not None])
    return Done(Amended(tuple([one.id for one in chosen if one.refused is None]), (), skipped))


async def apply(
    ids: Sequence[str],
    act: Act,
    *,
    gone: dict[str, Refusal] | None = None,
    on_progress: Callable[[int], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Done:
    """Calls `act` for each batch. `gone` are skipped, each for its reason. After `stopped` no further batch begins."""
    skipped = gone or {}
    parts = [Done(Amended(skipped=tuple([Skipped(each, *why) for each, why in skipped.items()])))]
    meant = [each for each in ids if each not in skipped]
    reached = 0
    while reached < len(meant) and not stopped():
        batch = meant[reached : reached + BATCH]
        done = await act(batch)
        parts.append(Done(done) if isinstance(done, Amended) else done)
        reached += len(batch)
        if on_progress is not None:
            on_progress(len(batch))
    duplicates = [each.duplicates for each in parts if each.duplicates is not None]
    return Done(
        joined([each.amended for each in parts]),
        tuple(chain.from_iterable([each.asked for each in parts])),
        len(meant) - reached,
        tuple(chain.from_iterable(duplicates)) if duplicates else None,
        tuple(chain.from_iterable([each.kept for each in parts])),
    )


async def running_among(store: Store, ids: Sequence[str]) -> set[str]:
    return {item.id for item in await items_of(store, ids, Match("state", "=", State.LEASED))}


async def purge(store: Store, name: str, actor: str, reason: str) -> int:
    """Cancel the items of a queue, and discard the open letters of the route of its name; how many there were.

    Leased items are asked to cancel, once: they end when they are given back, or their lease expires.
    """
    queue = Match("queue", "=", name)
    amend_all = partial(_amend_all, store, act=acts.Act(actor, reason, new_id()))
    gone = await amend_all(And((queue, Match("state", "=", State.READY))), Cancel())
    gone += await amend_all(open_letters(name), Discard())
    await amend_all(And((queue, Match("state", "=", State.LEASED))), Cancel(), once=True)
    return gone


async def _amend_all(store: Store, which: Selection, change: Change, *, act: acts.Act, once: bool = False) -> int:
    """Until none is left that can be changed."""
    changed = 0
    while True:
        amended, _ = await retry_unknown(partial(store.amend, which, change, act))
        changed += len(amended.changed) + len(amended.already)
        if once or not amended.changed:
            return changed


async def discard_letters(store: Store, which: Selection, actor: str, reason: str) -> AsyncIterator[list[Item]]:
    """Discard the letters of a selection, longest dead first; gives those of each write. Leased ones are left."""
    act = acts.Act(actor, reason, new_id())
    async for page in pages(lambda cursor: store.find(which, LETTERS, cursor, oldest=True)):
        if page.items:
            found = {item.id: item for item in page.items}
            done, _ = await retry_unknown(partial(store.amend, Ids(tuple(found)), Discard(), act))
            yield [found[each] for each in (*done.changed, *done.already)]
