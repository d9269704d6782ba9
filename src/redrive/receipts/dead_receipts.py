"""Reads dead letters as receipts: one letter, or all open letters of a queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from redrive.app import Redrive
from redrive.app.internals import PAGE_LIMIT
from redrive.core.filters import render
from redrive.core.item import Attempt, Ending, Failure, History, Instant, Item
from redrive.core.select import Match
from redrive.errors import NotFound, PayloadUndecodable
from redrive.observe.logs import log
from redrive.receipts.model import Envelope, Receipt
from redrive.receipts.receipts_json import Entry

logger = logging.getLogger("redrive.receipts")

HISTORIES_AT_ONCE = 50
IN_PLACE = "in place by "
"""How the note of an attempt begins that was made on a letter, by a recovery."""


class DeadReceipt(Struct, frozen=True):
    """A receipt that became a dead letter after `attempts` attempts; the last one failed with `error`.

    `last_error` and `tried_at` are those of the last recovery that reached the target; "" and None if there was none.
    """

    id: str
    receipt: Receipt
    failed_at: datetime
    attempts: int
    error: str
    tenant_id: str | None = None
    last_error: str = ""
    tried_at: datetime | None = None

    @property
    def entry(self) -> Entry:
        """The entry of a receipts.json."""
        return Entry(self.receipt, self.failed_at, self.attempts, self.tenant_id)


def letters_of(queue: str) -> str:
    """The filter for the open letters of a queue, whatever characters its name has."""
    return render(Match("queue", "=", queue))


def dead_receipt(item: Item, last: Attempt | None = None) -> DeadReceipt | None:
    """None for a letter that is not a receipt. `last`: see `last_attempts`."""
    letter = item.letter
    try:
        envelope = Envelope.decode(item.payload)
        receipt = envelope.open()
    except PayloadUndecodable:
        return None
    if letter is None:
        return None
    error = _text(letter.failure)
    dead = DeadReceipt(item.id, receipt, _datetime(letter.died_at), item.attempt, error, envelope.tenant_id)
    if last is None or last.failure is None:
        return dead
    return replace(dead, last_error=_text(last.failure), tried_at=_datetime(last.started_at))


async def dead_receipts(app: Redrive, queue: str, *, last_errors: bool = False) -> list[DeadReceipt]:
    """All open ones of a queue, first failed first. `last_errors` also reads what recoveries were told."""
    found: list[DeadReceipt | None] = []
    cursor = None
    while True:
        page = await app.letters.find(letters_of(queue), limit=PAGE_LIMIT, cursor=cursor)
        last = await last_attempts(app, page) if last_errors else {}
        found += [dead_receipt(item, last.get(item.id)) for item in page]
        cursor = page.next
        if cursor is None:
            break
    others = found.count(None)
    if others and last_errors:
        log(logger, logging.WARNING, f"{others} letters of queue {queue} are not receipts; see redrive letters list")
    return [each for each in reversed(found) if each is not None]


async def last_attempts(app: Redrive, items: Iterable[Item]) -> dict[str, Attempt]:
    """The last attempt on each letter since it died, by id. Reads histories only of letters leased since then."""
    ids = [
        item.id
        for item in items
        if item.letter is not None and item.leased_at is not None and item.leased_at >= item.letter.died_at
    ]
    found: dict[str, Attempt] = {}
    for start in range(0, len(ids), HISTORIES_AT_ONCE):
        batch = ids[start : start + HISTORIES_AT_ONCE]
        histories = await asyncio.gather(*[_history(app, each) for each in batch])
        found |= {each.item.id: last for each in histories if each and (last := last_attempt(each)) is not None}
    return found


async def _history(app: Redrive, item_id: str) -> History | None:
    try:
        return await app.history(item_id)
    except NotFound:  # removed since it was found
        return None


def last_attempt(history: History) -> Attempt | None:
    """The last failed attempt on a letter since it died; None if there was none."""
    letter = history.item.letter
    for attempt in reversed(history.attempts):
        if letter is None or attempt.started_at < letter.died_at:
            return None
        if attempt.failure is not None:
            # The attempt that the letter died of may have begun in the same millisecond.
            return attempt if attempt.ending is Ending.FAILED and attempt.note.startswith(IN_PLACE) else None
    return None


def _text(failure: Failure) -> str:
    return f"{failure.type}: {failure.text}" if failure.text else failure.type


def _datetime(at: Instant) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
