"""The shared store of mailboxes: its calls raise MailboxError, whatever error the store or the loop thread raised."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from redrive.blocking.shared_store import SharedStore, Store
from redrive.core.item import NewItem
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
        tally = await self.store.tally(members=(name,))
        return tally.row(name).live + sum(row.open for row in tally.routes if row.route == name)

    async def check_same_queue(self, item: NewItem) -> None:
        """Ids are unique in the whole store: a repeat is harmless, but a message under a used id would be dropped."""
        try:
            there = (await self.store.get(item.id)).item
        except NotFound:
            return  # it was acknowledged, and is not kept any more
        if there.queue != item.queue:
            text = f"{item.id!r} is a message of {there.queue!r}, not of {item.queue!r}"
            raise InvalidParameterError(text, field="message_id", hint="ids are unique in the whole store: use another")
