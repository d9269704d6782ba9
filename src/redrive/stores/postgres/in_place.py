"""`lease_letters` and `settle_letters` on PostgreSQL: letters that somebody works on where they lie.

A letter that is leased has a `lease_until` in its course, as an item that runs, and stays dead. Whoever moves what runs
therefore looks at the state as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from redrive.core import codec
from redrive.core.decide import ToCancelled, ToDone, ToReady
from redrive.core.item import Item, Millis
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.terms import AWAITED
from redrive.core.verbs import Answer, Settlement, Verdict
from redrive.errors import EncryptionKeyMissing
from redrive.stores.postgres import bonds
from redrive.stores.postgres.amend import Place, named, recount
from redrive.stores.postgres.arrays import bigints, bodies, integers, smallints, texts
from redrive.stores.postgres.compile import storable
from redrive.stores.postgres.put import IN_CLEAR, columns, packing_of
from redrive.stores.postgres.rows import item_of
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

_LIVE = frozenset({State.READY, State.LEASED})
_ENDS = {State.DONE: 0, State.CANCELLED: 4}
"""As bonds.sql counts them."""


class Ending(NamedTuple):
    """A settlement that is applied, and the letter it is about."""

    place: Place
    settlement: Settlement


async def lease(
    session: Session, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool, reserved: str
) -> tuple[Item, ...]:
    async def work(tx: Tx) -> tuple[Item, ...]:
        known = storable(ids)
        found: dict[int, str] = dict(await tx.execute(session.sql("amend", "lock_named"), (texts(known),)))
        values = (tx.now, worker, tx.now + ttl, early, reserved, bigints([*found]))
        given = {found[seq]: seq for (seq,) in await tx.execute(session.sql("lease_letters", "give"), values)}
        seqs = bigints([given[item_id] for item_id in known if item_id in given])
        statement = session.sql("get", "whole").replace("{found}", session.sql("lease_letters", "given"))
        return tuple([item_of(row) for row in await tx.execute(statement, (seqs,))]) if given else ()

    return await session.write(work)


async def settle(session: Session, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    async def work(tx: Tx) -> tuple[Answer, ...]:
        places, _ = await named(session, tx, Ids(tuple([one.id for one in settlements])))
        there = {place.id: place for place in places}
        applied: dict[str, Ending] = {}
        answers: list[Answer] = []
        for one in settlements:
            answer = _judged(one, there.get(one.id), is_over=one.id in applied)
            if answer.verdict is Verdict.APPLIED:
                applied[one.id] = Ending(there[one.id], one)
            answers.append(answer)
        if applied:
            await _apply(session, tx, [*applied.values()])
        return tuple(answers)

    return await session.write(work)


def _judged(settlement: Settlement, place: Place | None, *, is_over: bool) -> Answer:
    if place is None:
        return Answer(settlement.id, Verdict.REFUSED, "no such item")
    if place.deliveries != settlement.delivery:
        return Answer(place.id, Verdict.REFUSED, f"lease was given away: delivery {place.deliveries} is current")
    if place.state in _LIVE:
        return Answer(place.id, Verdict.REFUSED, f"it is {place.state}, not a dead letter")
    if is_over or place.state is not State.DEAD or place.lease_until is None or not place.worker:
        return Answer(place.id, Verdict.ALREADY)
    return Answer(place.id, Verdict.APPLIED)


async def _apply(session: Session, tx: Tx, endings: Sequence[Ending]) -> None:
    over = [each for each in endings if isinstance(each.settlement.decision, ToDone | ToCancelled)]
    stays = [each for each in endings if not isinstance(each.settlement.decision, ToDone | ToCancelled)]
    await _keep(session, tx, endings)
    await tx.execute(session.sql("changes", "note"), (_seqs(endings),))
    if stays:
        delays = bigints([_delay(each.settlement) for each in stays])
        await tx.execute(session.sql("settle_letters", "free"), (tx.now, _seqs(stays), delays))
    if over:
        await _end(session, tx, over)
    entries = [each.settlement.audit for each in endings if each.settlement.audit is not None]
    if entries:  # last, as in amend: whoever has the journal waits for nobody
        await append_acts(session, tx, entries, "")


def _delay(settlement: Settlement) -> Millis:
    return max(0, settlement.decision.delay) if isinstance(settlement.decision, ToReady) else 0


def _seqs(endings: Sequence[Ending]) -> bytes:
    return bigints([each.place.seq for each in endings])


async def _keep(session: Session, tx: Tx, endings: Sequence[Ending]) -> None:
    """Results and attempts."""
    results: list[tuple[int, bytes]] = []
    attempts: list[tuple[int, bytes]] = []
    for place, (_, settlement) in enumerate(endings, 1):
        if isinstance(settlement.decision, ToDone) and settlement.decision.result is not None:
            results.append((place, settlement.decision.result))
        if settlement.attempt is not None:
            attempts.append((place, codec.encode(settlement.attempt)))
    if results or attempts:
        values = (
            _seqs(endings),
            integers([each.settlement.delivery for each in endings]),
            integers(range(1, len(endings) + 1)),
            integers([place for place, _ in results]),
            smallints([packing_of(result) for _, result in results]),
            bodies([result for _, result in results]),
            integers([place for place, _ in attempts]),
            bodies([attempt for _, attempt in attempts]),
        )
        await tx.execute(session.sql("settle_letters", "keep"), values)


async def _end(session: Session, tx: Tx, over: Sequence[Ending]) -> None:
    """As if they had been replayed and ended so at once, but that none of them ran."""
    done = [each.place for each in over if isinstance(each.settlement.decision, ToDone)]
    cancelled = [each.place for each in over if not isinstance(each.settlement.decision, ToDone)]
    recount(tx, done, "done")
    recount(tx, cancelled, "cancelled")
    ends = [*[(place, State.DONE) for place in done], *[(place, State.CANCELLED) for place in cancelled]]
    seqs = bigints([place.seq for place, _ in ends])
    states = texts([state for _, state in ends])
    await tx.execute(session.sql("settle_letters", "end"), (seqs, tx.now, seqs, states))
    bound = [place.seq for place in done if place.ties & bonds.BOUND]
    if bound:
        await tx.execute(session.sql("settle_letters", "take_keys"), (bigints(bound), tx.now, tx.now))
    follow_ups = [new for each in over for new in each.settlement.follow_ups]
    if follow_ups:
        for note, other in await tx.execute(session.sql("settle_letters", "follow_up"), (tx.now, *columns(follow_ups))):
            if note == IN_CLEAR:
                raise EncryptionKeyMissing(other)
        tx.woken.update([new.queue for new in follow_ups])
    await bonds.let_go(session, tx, [place for place, _ in ends], gap=False)
    awaited = [(place.seq, _ENDS[state]) for place, state in ends if place.ties & AWAITED]
    if awaited:
        numbers, ways = zip(*awaited, strict=True)
        values = (tx.now, bigints(numbers), smallints(ways))
        ((woken,),) = await tx.execute(session.sql("settle_letters", "untie"), values)
        tx.woken.update(woken)
