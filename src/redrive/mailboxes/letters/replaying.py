"""Replaying, in the verbs of a store: each letter is back at work, or still the letter that it was."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from redrive.core import durations
from redrive.core import outcome as o
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Ids, Selection
from redrive.core.states import Disposition
from redrive.core.verbs import Act, Amended, Answer, Replay, Settlement, Skipped, Verdict
from redrive.engine.ids import new_id
from redrive.engine.report import decision_on, settlement_of
from redrive.errors import MailboxConnectionError, NotFound, OutcomeUnknown
from redrive.mailboxes.boxes.envelope import opened
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import Place, surely
from redrive.mailboxes.letters import claiming, claims
from redrive.mailboxes.letters.lending import open_letters
from redrive.mailboxes.letters.lens import over
from redrive.mailboxes.letters.plans import Body, Found, Itself, Message, Order, Plan, leaves
from redrive.mailboxes.letters.resending import Candidate
from redrive.stores.base import IDS_LIMIT

TTL: Millis = 60_000
TAKEN = "somebody else has it, or had it first"


async def ids(place: Place, name: str, more: tuple[Selection, ...]) -> list[str]:
    """Of all letters that are meant now, the longest dead first."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await place.store.ids(open_letters(name, *more), IDS_LIMIT, cursor, oldest=True)
        found += page.ids
        cursor = page.next
        if cursor is None:
            return found


async def read(place: Place, name: str, wanted: Sequence[str]) -> list[History | Skipped]:
    return await asyncio.gather(*[_read(place, name, each) for each in wanted])


async def _read(place: Place, name: str, item_id: str) -> History | Skipped:
    try:
        history = await place.store.get(item_id)
    except NotFound:
        return Skipped(item_id, "no such message")
    letter = history.item.letter
    if letter is None:
        return Skipped(item_id, f"it is {history.item.state}, not a dead letter")
    if letter.route != name or letter.disposition is not Disposition.OPEN:
        where = f"in {letter.route or 'no mailbox'}" if letter.route != name else f"in the {letter.disposition}"
        return Skipped(item_id, f"it is not in {name}, but {where}")
    return history


def replay(order: Order, letters: Sequence[Candidate], found: Found) -> None:
    """Each goes the way that is shortest for it."""
    plans = [plan for letter in letters if (plan := _planned(order, letter, found)) is not None]
    plans = [plan for plan in plans if not claiming.is_on_its_way(order, plan, found)]
    plans = claiming.claimed(order, plans, found)
    messages = [plan for plan in plans if isinstance(plan, Message)]
    _amend(order, [plan for plan in plans if isinstance(plan, Itself)], found)
    _settle_here(order, [plan for plan in messages if not leaves(order, plan)], found)
    away: list[Message | Body] = [plan for plan in messages if leaves(order, plan)]
    away += [plan for plan in plans if isinstance(plan, Body)]
    for one in away:
        try:
            _take_away(order, one, found)
        except MailboxConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - one that is not taken must not keep the others from going
            found.keep(one.letter, "it could not be sent", error)
    claiming.withdraw(order, plans, found)


def _planned(order: Order, letter: Candidate, found: Found) -> Plan | None:
    """Before any claim: a letter that cannot be changed must not keep others of its request from going."""
    if letter.item.flaw:
        found.kept.append(Skipped(letter.id, f"it is damaged: {letter.item.flaw}"))
        return None
    try:
        target = order.target(letter)
        if not isinstance(target, StoreMailbox):
            return Body(letter, target, order.resending.body(letter))
        if order.plain and not order.held and target._place is order.place and not letter.came_from_elsewhere:
            return Itself(letter, target)
        # To another store it is the same id with `dedupe` and without: a crash may come between its two steps, and
        # whoever repeats them may ask for the other.
        key = letter.new_id(target.name, by_request=order.dedupe or target._place is not order.place)
        return Message(letter, target, order.resending.item(letter, target, key))
    except Exception as error:  # noqa: BLE001 - whatever a transformation raises: its letter is not lost for it
        found.keep(letter, "it could not be sent", error)
        return None


def _amend(order: Order, plans: list[Itself], found: Found) -> None:
    """Back to work with all its history; to another queue of the store as well."""
    groups: dict[str, dict[str, Itself]] = defaultdict(dict)
    for plan in plans:
        moves = plan.target.name if plan.letter.item.queue != plan.target.name else ""
        groups[moves][plan.letter.id] = plan
    for queue, those in groups.items():
        amended = order.call(_amended, order.place, tuple(those), Replay(queue=queue), order.act)
        changed = [those[each] for each in (*amended.changed, *amended.already)]
        found.done += [(plan.letter, plan.target.name, plan.letter.id) for plan in changed]
        found.skip(amended.skipped)


async def _amended(place: Place, those: tuple[str, ...], change: Replay, act: Act) -> Amended:
    amended, _ = await surely(lambda: place.store.amend(Ids(those), change, act))
    return amended


# --- as new messages ------------------------------------------------------------------------------------------------


def _settle_here(order: Order, plans: list[Message], found: Found) -> None:
    """The letters end and the messages exist, in one write."""
    if not plans:
        return
    held = _lend(order, [plan.letter for plan in plans], found)
    those = [plan for plan in plans if plan.letter.id in held]
    ends = [_end(order, held[plan.letter.id], plan.target, plan.item.id, plan.item) for plan in those]
    _settle(order, ends, [(plan.letter, plan.target.name, plan.item.id) for plan in those], found)


def _take_away(order: Order, plan: Message | Body, found: Found) -> None:
    """First there, then here: between the two it is in both, and where ids are known, to do it again adds nothing."""
    letter, target = plan.letter, plan.target
    item = _lend(order, [letter], found).get(letter.id)
    if item is None:
        return
    begun = order.call(claims.claimed, order.place.store, letter.way)
    if begun is None:
        order.call(claiming.claim, order, {letter.way: claiming.whereto(target)})
    elif order.dedupe and claiming.refused(plan, begun, found):
        _let_go(order, letter, item)
        return
    try:
        if isinstance(plan, Body):
            key, other = target.send(plan.body, order.resending.reply_to(letter)), ""
        else:
            key, other = _hand_over(order, plan)
    except Exception as error:
        if begun is None and not isinstance(error.__cause__, OutcomeUnknown):
            _not_gone(order, letter, found)
        _let_go(order, letter, item)
        raise
    if other:
        if begun is None:
            _not_gone(order, letter, found)
        _let_go(order, letter, item)
        found.twice(letter, other, target)
        return
    _settle(order, [_end(order, item, target, key)], [(letter, target.name, key)], found)


def _hand_over(order: Order, plan: Message) -> tuple[str, str]:
    """The id that it has there; and the other letter of its request, if one came there before and only one may."""
    other = plan.target._call(_put, plan)
    if not other or order.dedupe:
        return plan.item.id, other
    own = claiming.as_its_own(plan)
    return own.item.id, plan.target._call(_put, own)


async def _put(plan: Message) -> str:
    """The letter that a message of this id came from already, if it was another one than this."""
    store, item = plan.target._place.store, plan.item
    await plan.target._prepare()
    result, _ = await surely(lambda: store.put([item]))
    if not result.already:
        return ""
    try:
        there = opened((await store.get(item.id)).item.payload).lineage
    except NotFound:
        return ""  # the claim is ours, so this was we; it was worked on and is not kept any more
    return there.letter if there is not None and there.letter != plan.letter.id else ""


def _not_gone(order: Order, letter: Candidate, found: Found) -> None:
    """Nothing of it can be elsewhere, so that it may be sent anywhere."""
    found.unsent.add(letter.id)
    order.call(claiming.give_up, order, letter.way)


def _lend(order: Order, letters: list[Candidate], found: Found) -> dict[str, Item]:
    """The letters in hand, by id; those that somebody else has are skipped."""
    if order.held:
        return {letter.id: letter.item for letter in letters}
    worker = f"{order.place.worker}-replay-{new_id()[:8]}"
    lent = order.call(_lease, order.place, [letter.id for letter in letters], worker)
    held = {item.id: item for item in lent}
    now = order.dead_letters.clock.now()
    found.skip([Skipped(letter.id, _taken(letter.item, now)) for letter in letters if letter.id not in held])
    return held


def _taken(item: Item, now: Millis) -> str:
    """As it was when it was read: whoever has it may have died since, and so until when is all that can be said."""
    left = (item.lease_until or 0) - now
    if not item.worker or left <= 0:
        return TAKEN
    whole = -(-left // 1000) * 1000
    return f"it is leased by {item.worker} for another {durations.brief(whole)}; repeat this if it is a letter then"


async def _lease(place: Place, wanted: list[str], worker: str) -> tuple[Item, ...]:
    """Also those that a consumer put off: nobody has them, and whoever replays them has a reason."""
    lent, _ = await surely(lambda: place.store.lease_letters(wanted, worker, TTL, early=True))
    return lent


def _let_go(order: Order, letter: Candidate, item: Item) -> None:
    """As it was, so put off if it was; unless whoever asked for it has it in hand, and goes on to have it."""
    if order.held:
        return
    was_put_off = letter.item.worker == "" and letter.item.lease_until is not None
    rest = max(0, (letter.item.lease_until or 0) - order.dead_letters.clock.now()) if was_put_off else 0
    order.call(_settled, order, [Settlement(item.id, item.deliveries, decision_on(item, o.Release(after=rest)))])


def _end(order: Order, item: Item, target: Mailbox[Any, Any], key: str, follow_up: NewItem | None = None) -> Settlement:
    note = f"replayed to {target.name} as {key} by {order.act.actor}: {order.act.reason}"
    follow_ups = () if follow_up is None else (follow_up,)
    made = settlement_of(item, o.Done(), worker=order.place.worker, note=note, follow_ups=follow_ups)
    return structs.replace(made, audit=over("replay", item.id, order.act))


def _settle(order: Order, ends: list[Settlement], sent: list[tuple[Candidate, str, str]], found: Found) -> None:
    answers = order.call(_settled, order, ends)
    done = [each for each, answer in zip(sent, answers, strict=True) if answer.verdict is Verdict.APPLIED]
    others = [each for each, answer in zip(sent, answers, strict=True) if answer.verdict is not Verdict.APPLIED]
    found.done += done
    found.skipped += [Skipped(letter.id, TAKEN) for letter, _, _ in others]


async def _settled(order: Order, ends: list[Settlement]) -> tuple[Answer, ...]:
    if not ends:
        return ()
    answers, first = await surely(lambda: order.place.store.settle_letters(ends))
    # A delivery that is ours alone, and has ended, was ended by us. One in hand may have been by whoever has it.
    return answers if order.held and first else tuple([_ours(answer) for answer in answers])


def _ours(answer: Answer) -> Answer:
    return Answer(answer.id, Verdict.APPLIED) if answer.verdict is Verdict.ALREADY else answer
