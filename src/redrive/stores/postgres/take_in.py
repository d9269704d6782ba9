"""`take_in` on PostgreSQL: letters of another store as arrays, in a few statements however many they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import History, Item, Letter, Revision, payloads_of
from redrive.core.lanes import NUMBERS, level_of
from redrive.core.select import Ids
from redrive.core.states import Disposition
from redrive.core.terms import TAGGED, ties
from redrive.core.verbs import PutResult
from redrive.errors import EncryptionKeyMissing
from redrive.stores import audit
from redrive.stores.imports import prepared
from redrive.stores.postgres.amend import KIND_OF, record_deeds
from redrive.stores.postgres.arrays import bigints, bodies, integers, smallints, texts
from redrive.stores.postgres.bonds import BOUND
from redrive.stores.postgres.put import bound_columns, crc_of, packing_of
from redrive.stores.postgres.rows import letter_names
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

Entered = tuple[int, History]
"""With the number that it has here."""


async def take_in(session: Session, histories: Sequence[History], by: Act) -> PutResult:
    """They were checked, and their payloads packed."""

    async def work(tx: Tx) -> PutResult:
        coming = prepared(histories, tx.now)
        await _check_sealed(session, tx, coming)
        seqs = await _numbered(session, tx, [history.item for history in coming])
        entered = [(seqs[history.item.id], history) for history in coming if history.item.id in seqs]
        if entered:
            await _enter(session, tx, entered)
            _count(tx, entered)
            await _audit(session, tx, entered, by)
        ids = [history.item.id for history in coming]
        return PutResult(tuple([one for one in ids if one in seqs]), tuple([one for one in ids if one not in seqs]))

    return await session.write(work) if histories else PutResult()


async def _check_sealed(session: Session, tx: Tx, coming: Sequence[History]) -> None:
    """No body in clear for a queue that is encrypted."""
    parts = [(one.item.queue, part.payload) for one in coming for part in payloads_of(one)]
    values = (texts([queue for queue, _ in parts]), smallints([packing_of(body) for _, body in parts]))
    ((in_clear,),) = await tx.execute(session.sql("take_in", "in_clear"), values)
    if in_clear is not None:
        raise EncryptionKeyMissing(in_clear)


async def _numbered(session: Session, tx: Tx, items: Sequence[Item]) -> dict[str, int]:
    """The numbers of those that are new, by id."""
    values = (
        texts([item.id for item in items]),
        texts([item.queue for item in items]),
        bigints([item.enqueued_at for item in items]),
        bigints([crc_of(item.payload) for item in items]),
        smallints([packing_of(item.payload) for item in items]),
        bodies([item.payload for item in items]),
        texts([item.release for item in items]),
    )
    seqs: dict[str, int] = dict(await tx.execute(session.sql("take_in", "enter"), values))
    for (buried,) in await tx.execute(session.sql("take_in", "leave_buried"), (bigints([*seqs.values()]),)):
        del seqs[buried]
    return seqs


async def _enter(session: Session, tx: Tx, entered: Sequence[Entered]) -> None:
    await tx.execute(session.sql("take_in", "courses"), _courses(entered))
    await tx.execute(session.sql("take_in", "letters"), _letters(entered))
    bound = [(seq, history.item.queue, terms) for seq, history in entered if (terms := history.item.terms) is not None]
    if bound:
        await tx.execute(session.sql("take_in", "terms"), bound_columns(bound, bigints))
    attempts = [(seq, attempt) for seq, history in entered for attempt in history.attempts]
    if attempts:
        values = (
            bigints([seq for seq, _ in attempts]),
            integers([attempt.delivery for _, attempt in attempts]),
            bodies([codec.encode(attempt) for _, attempt in attempts]),
        )
        await tx.execute(session.sql("take_in", "attempts"), values)
    revisions = [(seq, one) for seq, history in entered for one in history.revisions]
    if revisions:
        await tx.execute(session.sql("take_in", "revisions"), _revisions(revisions))
    tags = [(seq, tag) for seq, history in entered for tag in history.item.tags]
    if tags:
        names = texts([tag for _, tag in tags])
        await tx.execute(session.sql("take_in", "tags"), (bigints([seq for seq, _ in tags]), names))


def _revisions(revisions: Sequence[tuple[int, Revision]]) -> tuple[Any, ...]:
    return (
        bigints([seq for seq, _ in revisions]),
        integers([one.number for _, one in revisions]),
        bigints([one.at for _, one in revisions]),
        texts([one.actor for _, one in revisions]),
        texts([one.reason for _, one in revisions]),
        bodies([one.payload for _, one in revisions]),
        smallints([packing_of(one.payload) for _, one in revisions]),
        bigints([crc_of(one.payload) for _, one in revisions]),
    )


def _courses(entered: Sequence[Entered]) -> tuple[Any, ...]:
    items = [history.item for _, history in entered]
    return (
        bigints([seq for seq, _ in entered]),
        texts([item.queue for item in items]),
        bigints([item.due_at for item in items]),
        bigints([item.renewed_at for item in items]),
        integers([item.deliveries for item in items]),
        integers([item.attempt for item in items]),
        integers([item.errors for item in items]),
        integers([item.crashes for item in items]),
        integers([item.replays for item in items]),
        integers([history.omitted for _, history in entered]),
        smallints([item.last_chance for item in items]),
        texts([item.worker or "" for item in items]),
        bigints([-1 if item.leased_at is None else item.leased_at for item in items]),
        bigints([item.ended_at or 0 for item in items]),
        smallints([NUMBERS[item.priority] for item in items]),
        smallints([_ties(item) for item in items]),
        integers([level_of(item) for item in items]),
        texts([item.kind for item in items]),
    )


def _ties(item: Item) -> int:
    return ties(item.terms) | (0 if item.terms is None else BOUND) | (TAGGED if item.tags else 0)


def _letters(entered: Sequence[Entered]) -> tuple[Any, ...]:
    letters = list(_with_letters(entered))
    names = [letter_names(letter.reason, letter.failure, letter.route) for _, _, letter in letters]
    return (
        bigints([seq for seq, _, _ in letters]),
        texts([queue for _, queue, _ in letters]),
        bigints([letter.died_at for _, _, letter in letters]),
        texts([letter.disposition for _, _, letter in letters]),
        *[texts(column) for column in zip(*names, strict=True)],
        bodies([codec.encode(letter.failure) for _, _, letter in letters]),
    )


def _with_letters(entered: Iterable[Entered]) -> Iterable[tuple[int, str, Letter]]:
    """Number, queue and letter of each; that it has one was checked."""
    for seq, history in entered:
        if history.item.letter is not None:
            yield seq, history.item.queue, history.item.letter


async def _audit(session: Session, tx: Tx, entered: Sequence[Entered], by: Act) -> None:
    ids = tuple([history.item.id for _, history in entered])
    record = audit.AuditRecord(audit.IMPORT, Ids(ids), ids)
    (position,) = await append_acts(session, tx, (audit.entry(record, by),), record.change)
    await record_deeds(session, tx, position, [seq for seq, _ in entered], ())


def _count(tx: Tx, entered: Sequence[Entered]) -> None:
    letters = list(_with_letters(entered))
    for (queue, disposition), count in Counter([(queue, one.disposition) for _, queue, one in letters]).items():
        tx.count(queue, KIND_OF[disposition], count)
    for _, queue, letter in letters:
        if letter.disposition is Disposition.OPEN:
            _, cause, *_, route = letter_names(letter.reason, letter.failure, letter.route)
            tx.count_cause(cause, queue, route, 1)
