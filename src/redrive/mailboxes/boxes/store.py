"""The shared store of mailboxes: its calls raise MailboxError, whatever error the store or the loop thread raised."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from redrive.blocking.shared_store import SharedStore
from redrive.errors import (
    AppClosed,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxFullError,
    OutcomeUnknown,
    PayloadError,
    QueueFull,
    SerializationError,
    StoreUnavailable,
)
from redrive.stores.base import Store
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
        # Names that letters and loops use until they are merged.
        self.ring, self.ring_from_outside, self.report = self.notify, self.notify_from_thread, self.reporter.settled

    @classmethod
    def open_by(cls, fingerprint: str) -> MailboxStore | None:
        return cls.find(fingerprint)

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
