"""Recovery of dead receipts: try each where it lies. What is delivered is done, what is refused stays a letter.

The target is asked with every receipt: when it cannot be reached the recovery stops, and nothing was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from redrive.app import Redrive
from redrive.core.item import Item, Millis, short_id
from redrive.core.rates import RateText
from redrive.core.verbs import Skipped
from redrive.engine.signals import Cancel
from redrive.errors import (
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
    ReceiptUnreachable,
    StoreError,
)
from redrive.office.in_place import Halt
from redrive.receipts._logs import say
from redrive.receipts.dead_receipts import letters_of
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope
from redrive.stores.clock import Clock

GONE = frozenset({"502", "503", "504"})
"""What a gateway says while nobody is behind it."""
NOT_LET_IN = frozenset({"UNAUTHORIZED", "401"})
"""About the token, not about the receipt: what is said of one is true of all."""
PATIENCE = 5
"""Tries of one receipt while the target asks for patience."""
LONGEST_WAIT: Millis = 60_000
PIECE: Millis = 500


class Recovery(Struct, frozen=True):
    """What became of each dead receipt, by id.

    `kept` are letters still, each with the reason; `superseded` are not owed any more; `skipped` were held by somebody
    else or changed meanwhile; `left` were not reached. `unreachable` says why it stopped early, if it did: the target
    could not be reached, or did not take the token.
    """

    delivered: tuple[str, ...] = ()
    kept: tuple[Skipped, ...] = ()
    superseded: tuple[Skipped, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    left: tuple[str, ...] = ()
    unreachable: str = ""
    stopped: bool = False


class Target(Protocol):
    """A receipt client, as far as a recovery needs one."""

    @property
    def app(self) -> Redrive: ...
    @property
    def queue(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def metrics(self) -> ReceiptMetrics: ...

    async def deliver(self, item: Item) -> None: ...


async def recover(
    client: Target,
    *,
    reason: str = "recovery",
    dry_run: bool = False,
    limit: int | None = None,
    pace: RateText | None = None,
    concurrency: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Recovery:
    """Try every dead receipt once, first failed first. May be repeated, interrupted, and run twice at once.

    `pace` as in "10/s". `stop` is asked before each: if it says so, the rest is left as it is.
    """

    def look() -> None:
        if stop is not None and stop():
            raise Halt(STOPPED)

    async def deliver(item: Item) -> None:
        look()
        await _deliver(client, item, look)

    worked = await client.app.letters.work(
        letters_of(client.queue),
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
        say(logging.WARNING, f"receipt {short_id(each.id)} was kept: {each.reason}")
    if not dry_run:
        with suppress(StoreError):  # what was recovered is told, also if nobody can count what is left
            await client.metrics.refresh()
    stopped = worked.halted == STOPPED
    unreachable = "" if stopped else worked.halted
    if unreachable:
        say(logging.WARNING, f"recovery stopped, {len(worked.left)} left: {unreachable}")
    return Recovery(
        worked.done, worked.kept, worked.cancelled, worked.skipped, worked.left, unreachable, stopped=stopped
    )


STOPPED = "it was asked to stop"


async def _deliver(client: Target, item: Item, look: Callable[[], None]) -> None:
    status = _status(item)
    try:
        await _patiently(client, item, look)
    except ReceiptSuperseded as error:
        client.metrics.trying(item.id, status, retry=False)
        raise Cancel(f"superseded: {error.message}") from None
    except ReceiptUnreachable as error:
        raise Halt(str(error)) from None
    except ReceiptRefused as error:
        if error.code in NOT_LET_IN:
            raise Halt(f"{error.message}; check the token") from None
        raise
    except ReceiptServerError as error:
        if error.code in GONE:
            raise Halt(str(error)) from None
        raise
    client.metrics.trying(item.id, status, retry=False)
    client.metrics.arrived(item.id)


async def _patiently(client: Target, item: Item, look: Callable[[], None]) -> None:
    """A rate limit is no answer to the receipt: it is waited for, within reason."""
    for failures in range(1, PATIENCE):
        try:
            await client.deliver(item)
        except ReceiptLimited as error:
            asked = 2.0**failures if error.retry_after is None else error.retry_after
            if asked * 1000 > LONGEST_WAIT:
                raise
            await _wait(client.clock, max(1, round(asked * 1000)), look)
        else:
            return
    await client.deliver(item)


async def _wait(clock: Clock, duration: Millis, look: Callable[[], None]) -> None:
    """In pieces, so that whoever wants to stop need not wait for the end."""
    while duration > 0:
        piece = min(duration, PIECE)
        await clock.sleep(piece)
        duration -= piece
        look()


def _status(item: Item) -> str:
    """For the metrics. Raises PayloadUndecodable."""
    return Envelope.decode(item.payload).open().status
