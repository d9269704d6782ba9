"""Dead letters whose mailbox is on another store: they die here, in one write with all else, and are then taken there.

In two steps, each of which may be repeated: the letter enters the other store under its own id, and then ends here. A
crash between them leaves it in both; the next move finds it there already and ends it here. Where the other store
cannot be reached, it stays a letter of this one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs

from redrive.core import outcome as o
from redrive.core.item import History, Item, Millis
from redrive.core.select import Match
from redrive.core.verbs import Act
from redrive.engine.ids import new_id
from redrive.engine.report import settlement_of
from redrive.errors import MailboxError
from redrive.mailboxes.boxes.envelope import opened
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import Place, surely
from redrive.mailboxes.letters.lending import at_death
from redrive.mailboxes.letters.lens import Lens, dead_letter_from, over

BITE = 20
TTL: Millis = 60_000
DAMAGED: Millis = 86_400_000
"""Until a letter that no other store would take is looked at again."""
FROM = "from:"


def origin_of(item: Item) -> str:
    """The fingerprint of the store that a letter came from; "" for one that died here."""
    return next((tag.removeprefix(FROM) for tag in item.tags if tag.startswith(FROM)), "")


def move(source: StoreMailbox[Any, Any], target: Mailbox[Any, Any]) -> int:
    """Take the letters that messages of `source` left for `target` to its store; how many."""
    place = source._place
    if isinstance(target, StoreMailbox) and (target._place is place or _twins(place, target._place) in _known_twins):
        return 0
    # A mailbox of this store may have the same name, and letters of its own.
    lens = Lens(place, target.name, Match("queue", "=", source.name))
    moved = 0
    while True:
        letters = place.call(lens.take, BITE, TTL)
        whole = [each for each in letters if not each.item.flaw]
        damaged = [each for each in letters if each.item.flaw]
        place.call(_end, place, damaged, o.Release("too damaged to be moved", DAMAGED))
        if isinstance(target, StoreMailbox):
            moved += _take_over(place, target, whole)
        else:
            moved += _send(place, target, whole, target.body_type or source.body_type)
        if len(letters) < BITE:
            return moved


def _take_over(place: Place, target: StoreMailbox[Any, Any], letters: list[History]) -> int:
    act = Act(place.worker, f"moved to {target.name} from another store", new_id())
    there = target._place
    try:
        own = target._call(_take_in, target, letters, place.fingerprint, act) if letters else False
    except MailboxError:
        place.call(_end, place, letters, o.Release(f"{target.name} could not be reached"))
        raise
    if own:
        _known_twins.add(_twins(place, there))
        place.call(_end, place, letters, o.Release(f"{target.name} is on this store"))
        return 0
    place.call(_end, place, letters, _gone(target, there.fingerprint))
    return len(letters)


async def _take_in(target: StoreMailbox[Any, Any], letters: list[History], home: str, act: Act) -> bool:
    """Whether it is the very store that they are on, by another address: then they must not end there."""
    await target._prepare()
    store = target._place.store
    copies = [_as_it_died(each, home) for each in letters]
    taken, _ = await surely(lambda: store.take_in(copies, act))
    target._place.ring(target.name)
    there = await asyncio.gather(*[store.get(each) for each in taken.already], return_exceptions=True)
    holders = {each.item.worker for each in there if isinstance(each, History)}
    return any(each.item.worker in holders for each in letters)


def _twins(place: Place, other: Place) -> frozenset[str]:
    return frozenset({place.fingerprint, other.fingerprint})


_known_twins: set[frozenset[str]] = set()
"""Places of one store that is known here by two addresses."""


def _send(place: Place, target: Mailbox[Any, Any], letters: list[History], body_type: Any) -> int:
    """To somebody else's mailbox, one by one: after a crash, one of them may be sent again."""
    for at, each in enumerate(letters):
        try:
            target.send(dead_letter_from(each, opened(each.item.payload), body_type))
        except Exception:
            place.call(_end, place, letters[at:], o.Release(f"{target.name} did not take it"))
            raise
        place.call(_end, place, [each], _gone(target, ""))
    return len(letters)


def _as_it_died(history: History, fingerprint: str) -> History:
    """Without what was done to move it: where it arrives, nobody has had it yet."""
    died, deliveries = at_death(history)
    came = f"{FROM}{origin_of(died.item) or fingerprint}"
    # Nor does it name who had it last: that is whoever moves it, by which it is known on its own store.
    item = structs.replace(died.item, deliveries=deliveries, worker=None, tags=tuple(sorted({*died.item.tags, came})))
    return structs.replace(died, item=item)


def _gone(target: Mailbox[Any, Any], fingerprint: str) -> o.Cancelled:
    return o.Cancelled(f"moved to {target.name} on another store{f' ({fingerprint})' if fingerprint else ''}")


async def _end(place: Place, letters: list[History], outcome: o.Cancelled | o.Release) -> None:
    """Whoever took it from us meanwhile has it: then this changes nothing."""
    settlements = []
    for item in [each.item for each in letters]:
        made = settlement_of(item, outcome, worker=place.worker)
        if isinstance(outcome, o.Cancelled):
            made = structs.replace(made, audit=over("move", item.id, Act(place.worker, outcome.note, new_id())))
        settlements.append(made)
    if settlements:
        await surely(lambda: place.store.settle_letters(settlements))
