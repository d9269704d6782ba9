"""Recovery of dead receipts: one attempt on each letter in place. Delivered ones are done, refused ones stay letters.

The first receipt that does not reach the target ends the recovery; nothing was changed then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct

from redrive.app import Redrive
from redrive.app.nesting import AsyncLifecycle
from redrive.core.acts import Skipped
from redrive.core.item import Item, short_id
from redrive.core.rates import RateText
from redrive.engine.signals import Cancel
from redrive.errors import (
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
    ReceiptUnreachable,
    StoreError,
)
from redrive.observe.logs import log
from redrive.office.in_place_job import Halt, patiently
from redrive.receipts._delivery import SUPERSEDED
from redrive.receipts.dead_receipts import letters_of, logger
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import unpack
from redrive.stores.clock import Clock

UNREACHABLE_CODES = frozenset({"502", "503", "504"})
"""Answers of a gateway whose server is down."""
UNAUTHORIZED_CODES = frozenset({"UNAUTHORIZED", "401"})
"""About the token, not about the receipt: the others would get the same answer."""
STOPPED = "it was asked to stop"


class Recovery(Struct, frozen=True):
    """What became of each dead receipt, by id.

    `kept` are still letters, each with the reason; `superseded` are no longer owed; `skipped` were leased by another
    recovery, or changed meanwhile; `left` were not reached. `unreachable` says why it stopped early, if it did: the
    target could not be reached, or did not accept the token.
    """

    delivered: tuple[str, ...] = ()
    kept: tuple[Skipped, ...] = ()
    superseded: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    left: tuple[str, ...] = ()
    unreachable: str = ""
    stopped: bool = False


class Recovering(AsyncLifecycle):
    """The part of a client that recovers dead receipts."""

    app: Redrive
    queue: str
    clock: Clock
    metrics: ReceiptMetrics

    async def deliver(self, item: Item) -> None:
        raise NotImplementedError

    async def recover(
        self,
        *,
        reason: str = "recovery",
        dry_run: bool = False,
        limit: int | None = None,
        pace: RateText | None = None,
        concurrency: int = 1,
        on_progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Recovery:
        """Try each dead letter once more, in place, first failed first: after a crash it is still a dead letter. Stops
        when the target is unreachable. May be repeated, interrupted, and run twice at once.

        `limit` is how many are tried, `pace` how fast, as in "10/s". `on_progress` is called with how many of how many
        were reached; `stop` before each: True leaves the rest.
        """
        self._check_open()

        def check_stop() -> None:
            if stop is not None and stop():
                raise Halt(STOPPED)

        async def deliver(item: Item) -> None:
            check_stop()
            await _deliver(self, item, check_stop)

        worked = await self.app.letters.work(
            letters_of(self.queue),
            deliver,
            reason=reason,
            concurrency=concurrency,
            pace=pace,
            limit=limit,
            on_progress=on_progress,
            dry_run=dry_run,
            early=True,
        )
        for each in worked.kept:
            log(logger, logging.WARNING, f"receipt {short_id(each.id)} was kept: {each.reason}")
        if not dry_run:
            with suppress(StoreError):  # the result counts, also without a new gauge
                await self.metrics.refresh()
        stopped = worked.halted == STOPPED
        unreachable = "" if stopped else worked.halted
        if unreachable:
            log(logger, logging.WARNING, f"recovery stopped, {len(worked.left)} left: {unreachable}")
        return Recovery(
            worked.done, worked.kept, worked.cancelled, worked.skipped, worked.left, unreachable, stopped=stopped
        )


async def _deliver(client: Recovering, item: Item, check_stop: Callable[[], None]) -> None:
    status = unpack(item.payload)[0].status
    try:
        await patiently(partial(client.deliver, item), ReceiptLimited, client.clock, check_stop)
    except ReceiptSuperseded as error:
        client.metrics.trying(item.id, status, retry=False)
        raise Cancel(f"{SUPERSEDED}{error.message}") from None
    except ReceiptUnreachable as error:
        raise Halt(str(error)) from None
    except (ReceiptRefused, ReceiptServerError) as error:
        if error.code in UNAUTHORIZED_CODES:
            raise Halt(f"{error.message}; check the token") from None
        if error.code in UNREACHABLE_CODES:
            raise Halt(str(error)) from None
        raise
    client.metrics.trying(item.id, status, retry=False)
    client.metrics.arrived(item.id)
