"""The shared store of mailboxes: its calls raise MailboxError, whatever error the store or the loop thread raised."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from redrive.blocking.shared_store import SharedStore, Store
from redrive.core.item import NewItem
from redrive.core.select import And, Match, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import Act, Cancel, Change, Discard
from redrive.engine.ids import new_id
from redrive.engine.store_retry import retry_unknown
from redrive.errors import (
    AppClosed,
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxFullError,
    NotFound,
    OutcomeUnknown,
    PayloadError,
    QueueFull,
    SerializationError,
    StoreUnavailable,
)
from redrive.stores.clock import Clock

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import StoreMailbox

P = ParamSpec("P")
T = TypeVar("T")


class MailboxStore(SharedStore):
    """`mailboxes`: those that are open on it in this process, by name."""

    kind: ClassVar[str] = "mailbox"

    def __init__(self, key: tuple[object, ...], store: Store, clock: Clock | None) -> None:
        super().__init__(key, store, clock)
        self.mailboxes: WeakValueDictionary[str, StoreMailbox[Any, Any]] = WeakValueDictionary()

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return super().call(method, *args, **kwargs)
        except (StoreUnavailable, OutcomeUnknown) as error:
            raise MailboxConnectionError(error.message, hint=error.hint) from error
        except QueueFull as error:
            raise MailboxFullError(error.message, hint=error.hint) from error
        except PayloadError as error:
            raise SerializationError(error.message, hint=error.hint) from error
        except AppClosed as error:
            raise MailboxClosedError(error.message, hint=error.hint) from error

    async def count(self, name: str) -> int:
        """In the loop: messages that are ready, delayed or in hand, and open letters under this name."""
        tally = await self.store.tally()
        live = sum(row.ready + row.held + row.parked + row.leased for row in tally.queues if row.queue == name)
        return live + sum(row.open for row in tally.routes if row.route == name)

    async def purge(self, name: str) -> int:
        """In the loop: cancel messages, and discard open letters, until none is left that can be changed."""
        queue = Match("queue", "=", name)
        gone = await self._amend_all(And((queue, Match("state", "=", State.READY))), Cancel())
        dead, is_open = Match("state", "=", State.DEAD), Match("disposition", "=", Disposition.OPEN)
        gone += await self._amend_all(And((dead, is_open, Match("route", "=", name))), Discard())
        # A cancel request, once: messages in hand end when they are given back, or their lease expires.
        await self._amend_all(And((queue, Match("state", "=", State.LEASED))), Cancel(), once=True)
        return gone

    async def _amend_all(self, selection: Selection, change: Change, *, once: bool = False) -> int:
        changed = 0
        while True:
            act = Act(self.worker, "purged", new_id())
            amended, _ = await retry_unknown(partial(self.store.amend, selection, change, act))
            changed += len(amended.changed) + len(amended.already)
            if once or not amended.changed:
                return changed

    async def check_same_queue(self, item: NewItem) -> None:
        """Ids are unique in the whole store: a repeat is harmless, but a message under a used id would be dropped."""
        try:
            there = (await self.store.get(item.id)).item
        except NotFound:
            return  # it was acknowledged, and is not kept any more
        if there.queue != item.queue:
            text = f"{item.id!r} is a message of {there.queue!r}, not of {item.queue!r}"
            raise InvalidParameterError(text, field="message_id", hint="ids are unique in the whole store: use another")
