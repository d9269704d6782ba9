"""An item and all that stands around it, read at one time: what `explain` judges by, and the words it answers in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.families import family_of
from redrive.core.item import History, Instant, Item, Terms
from redrive.core.policy import Policy
from redrive.core.select import And, Match, Or
from redrive.core.states import State
from redrive.core.terms import is_parked
from redrive.core.verbs import QueueTally, RouteTally, WorkerBeat
from redrive.errors import NotFound
from redrive.office.doors import doors
from redrive.office.gates import GateView, list_gates
from redrive.stores.base import Store

OTHERS = 20
"""So many of those it waits for are looked at."""


class Why(Struct, frozen=True):
    """One thing that keeps it where it is. `kind` is a word for programs; `by` decided it; it ends at `until`, if that
    is known; `ids` are the items that it is about.
    """

    kind: str
    text: str
    by: str = ""
    until: Instant | None = None
    ids: tuple[str, ...] = ()


class Explanation(Struct, frozen=True):
    """`state` is the word people use: scheduled, retrying, blocked, parked and running besides those that are stored.
    `next` is what happens next, at `next_at` if that is known. `advice` are commands that change it. `policy` judges
    the next failure of a live item: whose it is, and what it says where that is known.
    """

    id: str
    queue: str
    state: str
    summary: str
    why: tuple[Why, ...]
    next: str
    next_at: Instant | None = None
    advice: tuple[str, ...] = ()
    policy: str = ""


class Scene(Struct, frozen=True):
    """The item and what stands around it at one time.

    `queue` has the settings that hold for it; `families` is the one that it is a member of, if there is one.
    `others` are those it waits for, as far as they are still there. `behind`: how many wait behind it under its order
    key, and `more` if there are more. `policy`: the one that judges it, where the app is known;
    `note` tells of names that the app does not know. `door`: see office.doors.
    """

    now: Instant
    history: History
    queue: QueueTally
    families: tuple[QueueTally, ...] = ()
    gate: GateView | None = None
    routes: tuple[RouteTally, ...] = ()
    workers: tuple[WorkerBeat, ...] = ()
    others: tuple[Item, ...] = ()
    behind: int = 0
    more: bool = False
    policy: Policy | None = None
    note: str = ""
    door: str = ""


Judge = Callable[[Item, QueueTally], tuple[Policy, str] | None]
"""The policy that judges an item, where the app is known, and which names were passed over (see `resolve`)."""


def _nobody(_item: Item, _row: QueueTally) -> None:
    return None


async def look(store: Store, item_id: str, judge: Judge = _nobody) -> Scene:
    """Raises NotFound."""
    history = await store.get(item_id)
    item, tally = history.item, await store.tally(members=(history.item.queue,))
    row = tally.row(item.queue)
    families = tuple([each for each in tally.families if each.queue == family_of(item.queue)])
    if families:
        row = replace(row, settings=await store.settings(item.queue))
    gates = await list_gates(store) if row.settings.gate else ()
    behind, more = await _behind(store, item)
    policy, note = judge(item, row) or (None, "")
    return Scene(
        now=tally.at,
        history=history,
        queue=row,
        families=families,
        gate=next((gate for gate in gates if gate.name == row.settings.gate), None),
        routes=tally.routes,
        workers=await store.workers(),
        others=await _others(store, history),
        behind=behind,
        more=more,
        policy=policy,
        note=note,
        door=(await doors(store)).get(item.queue, ""),
    )


async def _others(store: Store, history: History) -> tuple[Item, ...]:
    terms = history.item.terms or Terms()
    found = []
    for each in tuple(dict.fromkeys((*history.blocked_by, *terms.after)))[:OTHERS]:
        with suppress(NotFound):
            found.append((await store.get(each)).item)
    return tuple(found)


async def _behind(store: Store, item: Item) -> tuple[int, bool]:
    """Only a letter keeps others waiting that may not know of it."""
    if item.letter is None or item.terms is None or not item.terms.order_key:
        return 0, False
    waiting = Or((Match("hold", "=", "order"), Match("hold", "=", "parked:order")))
    same = (Match("queue", "=", item.queue), Match("key", "=", item.terms.order_key), waiting)
    page = await store.find(And(same), OTHERS)
    return len(page), page.next is not None


def state_of(item: Item, now: Instant) -> str:
    """In the words that `state:` of a filter understands."""
    if item.state is State.LEASED:
        return "running"
    if item.state is not State.READY:
        return str(item.state)
    if is_parked(item.hold):
        return "parked"
    if item.hold:
        return "blocked"
    if item.attempt:
        return "retrying"
    return "scheduled" if item.due_at > now else "ready"
