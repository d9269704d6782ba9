"""Reads dead letters as receipts: one letter, or all open letters of a queue."""

from __future__ import annotations

import logging
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from redrive.app import Redrive
from redrive.app.internals import PAGE_LIMIT
from redrive.core.filters import render
from redrive.core.instants import moment
from redrive.core.item import Attempt, Item, error_line
from redrive.core.select import Match
from redrive.errors import PayloadUndecodable
from redrive.observe.logs import log
from redrive.office.bites import pages
from redrive.office.in_place import last_attempts
from redrive.receipts.model import Receipt, unpack
from redrive.receipts.receipts_json import Entry

logger = logging.getLogger("redrive.receipts")


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
        receipt, tenant_id = unpack(item.payload)
    except PayloadUndecodable:
        return None
    if letter is None:
        return None
    error = error_line(letter.failure.type, letter.failure.text)
    dead = DeadReceipt(item.id, receipt, moment(letter.died_at), item.attempt, error, tenant_id)
    if last is None or last.failure is None:
        return dead
    last_error = error_line(last.failure.type, last.failure.text)
    return replace(dead, last_error=last_error, tried_at=moment(last.started_at))


async def dead_receipts(app: Redrive, queue: str, *, last_errors: bool = False) -> list[DeadReceipt]:
    """All open ones of a queue, first failed first. `last_errors` also reads what recoveries were told."""
    found: list[DeadReceipt | None] = []
    async for page in pages(lambda cursor: app.letters.find(letters_of(queue), limit=PAGE_LIMIT, cursor=cursor)):
        last = await last_attempts(page, app.history) if last_errors else {}
        found += [dead_receipt(item, last.get(item.id)) for item in page]
    others = found.count(None)
    if others and last_errors:
        log(logger, logging.WARNING, f"{others} letters of queue {queue} are not receipts; see redrive letters list")
    return [each for each in reversed(found) if each is not None]
