"""`take_in` on Redis: letters of another store are made ready in Python, and enter by one script."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.item import History, Item, Letter
from redrive.core.lanes import NUMBERS
from redrive.core.select import Ids
from redrive.core.terms import TAGGED, ties
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError
from redrive.stores import audit
from redrive.stores.imports import prepared
from redrive.stores.redis.put import terms_facts
from redrive.stores.redis.rows import packed_body, packed_revision
from redrive.stores.redis.search import by_ids
from redrive.stores.redis.session import Session
from redrive.stores.redis.shelf import meta_of
from redrive.stores.redis.texts import packed

MOST = 900_000
"""Arguments of one script: the server takes at most a million."""
_NO_TERMS = ("", 0, "", "", False, "", False, False, False, "", "")


async def take_in(session: Session, histories: Sequence[History], by: Act) -> PutResult:
    """They were checked, and their payloads packed."""
    if not histories:
        return PutResult()
    now = (await by_ids(session, (), needs="")).now
    letters = prepared(histories, now)
    if sum(len(letter.attempts) + len(letter.revisions) + 3 for letter in letters) > MOST:
        raise ConfigError(f"{len(letters):,} letters are too many for one call", field="letters", hint="take in fewer")
    ids = tuple([letter.item.id for letter in letters])
    heads = [(letter.item.id, _record(letter), len(letter.attempts), len(letter.revisions)) for letter in letters]
    args: list[bytes | str | int] = [packed(heads), *_entry(by), by.actor, by.reason, by.request_id]
    for letter in letters:
        args += [
            codec.encode(letter.item.id),
            packed_body(letter.item.payload),
            codec.encode(_letter(letter.item).failure),
        ]
        args += [codec.encode(attempt) for attempt in letter.attempts]
        args += [packed_revision(revision) for revision in letter.revisions]
    there = set(await session.run("take_in", args))
    return PutResult(
        tuple([one for place, one in enumerate(ids, 1) if place not in there]),
        tuple([one for place, one in enumerate(ids, 1) if place in there]),
    )


def _entry(by: Act) -> tuple[bytes | str, ...]:
    """The audit entry in pieces: only the script knows which ids are taken in, and they stand there twice."""
    mark = uuid.uuid4().hex
    entry = audit.entry(audit.AuditRecord(audit.IMPORT, Ids((mark,)), (mark,)), by)
    return (meta_of(entry), *entry.body.split(codec.encode(mark)))


def _record(letter: History) -> tuple[object, ...]:
    """As lua/prelude.lua has it, but for its number."""
    item = letter.item
    return (
        *(0, item.queue, str(item.state), item.enqueued_at, item.due_at, item.renewed_at, item.deliveries),
        *(item.attempt, item.errors, item.crashes, item.replays, item.last_chance, False),
        *(_or_false(item.worker), _or_false(item.leased_at), False, _or_false(item.ended_at)),
        *(letter.omitted, _facts(_letter(item)), *_rest(item)),
    )


def _or_false(value: object) -> object:
    return False if value is None else value


def _letter(item: Item) -> Letter:
    if item.letter is None:
        raise AssertionError("checked before")
    return item.letter


def _facts(letter: Letter) -> tuple[object, ...]:
    why = letter.failure
    lies = (letter.reason, letter.died_at, str(letter.disposition))
    return *lies, why.cause, why.type.rpartition(".")[2], why.category, letter.route


def _rest(item: Item) -> tuple[object, ...]:
    """Only of those that have a priority, terms, tags, a kind or a release."""
    priority, terms = NUMBERS[item.priority], terms_facts(item.terms)
    named = (item.kind, item.release) if item.kind or item.release else ()
    if item.tags:
        bound = terms if isinstance(terms, tuple) else _NO_TERMS
        # The tags stand before what describes the item.
        bound = (*bound[: len(_NO_TERMS)], item.tags, *bound[len(_NO_TERMS) + 1 :])
        return (priority, 0, ties(item.terms) | TAGGED, bound, *named)
    return (priority, 0, ties(item.terms), terms, *named) if priority or terms or named else ()
