"""Mailboxes for tests of your own: one that drops, one that collects, and one that fails on request.

mailbox = FakeMailbox("requests", clock=FakeClock())
mailbox.inject_message({"n": 1}, delivery_count=5)          # what the next `receive` gives
mailbox.expire_handle(message.receipt_handle)               # its lease is over
mailbox.set_connection_error("the broker is away")          # every call fails, until it is set to None
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec.structs import replace

from redrive.core.item import Item, Millis
from redrive.core.states import State
from redrive.core.validation import check_count
from redrive.engine.ids import new_id
from redrive.engine.reaper import lost_settlement
from redrive.engine.report import RECEIVED
from redrive.engine.source import RESCUE
from redrive.errors import InvalidParameterError, MailboxClosedError, MailboxConnectionError, NotFound
from redrive.mailboxes.boxes.factories import InMemoryMailbox, Options
from redrive.mailboxes.boxes.mailbox import Mailbox, Urgency
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.boxes.store import MailboxStore

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
A = TypeVar("A")


class NullMailbox(Mailbox[T, R]):
    """Takes everything, keeps nothing."""

    name = ""
    closed = False

    def __init__(self, name: str = "null") -> None:
        self.name = name

    def send(self, body: T, reply_to: Mailbox[R, Any] | str | None = None, **_options: Any) -> str:
        if self.closed:
            raise MailboxClosedError(f"mailbox {self.name!r} is closed; nothing was done")
        return self._take(body, reply_to)

    def _take(self, _body: T, _reply_to: Mailbox[R, Any] | str | None) -> str:
        return new_id()

    def receive(
        self,
        max_messages: int = 1,  # noqa: ARG002 - whatever is asked for, there is nothing
        visibility_timeout: float = 30,  # noqa: ARG002
        wait_time_seconds: float = 0,  # noqa: ARG002
    ) -> Sequence[Message[T, R]]:
        return []

    def purge(self) -> int:
        return 0

    def approximate_count(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Sent(Generic[T]):
    """What was sent: its id, its body, and where answers to it go."""

    id: str
    body: T
    reply_to: Any = None


class CollectingMailbox(NullMailbox[T, R]):
    """Remembers what was sent: `sent` has the bodies, `entries` also ids and reply addresses. Nothing is received."""

    def __init__(self, name: str = "collecting") -> None:
        super().__init__(name)
        self.entries: list[Sent[T]] = []

    @property
    def sent(self) -> list[T]:
        return [entry.body for entry in self.entries]

    def _take(self, body: T, reply_to: Mailbox[R, Any] | str | None) -> str:
        key = super()._take(body, reply_to)
        self.entries.append(Sent(key, body, reply_to))
        return key

    def purge(self) -> int:
        gone = len(self.entries)
        self.entries.clear()
        return gone

    def approximate_count(self) -> int:
        return len(self.entries)


class FakeMailbox(InMemoryMailbox[T, R]):
    """A mailbox in memory that fails, forgets and pretends when a test says so."""

    def __init__(self, name: str = "fake", **options: Unpack[Options]) -> None:
        self._error: Exception | None = None
        self._extra: dict[str, int] = {}
        super().__init__(name, **options)

    def set_connection_error(self, error: Exception | str | None) -> None:
        """What every call of this mailbox and of its messages raises from now on; None: they work again.

        It cannot be reached by others either: replies that loops have for it wait, and so do letters from other stores.
        A text, or an error that is no MailboxConnectionError, is raised as one.
        """
        if error is None or isinstance(error, MailboxConnectionError):
            self._error = error
            return
        self._error = MailboxConnectionError(str(error))
        self._error.__cause__ = error if isinstance(error, Exception) else None

    def expire_handle(self, receipt_handle: str) -> None:
        """As if its visibility timeout had passed: the handle is refused, and the message is visible again."""
        super().call(self._expire, receipt_handle)

    async def _expire(self, receipt_handle: str) -> None:
        key, _, delivery = receipt_handle.rpartition(":")
        store = self.shared.store
        try:
            item = (await store.get(key)).item
        except NotFound:
            item = None
        if item is None or item.state is not State.LEASED or str(item.deliveries) != delivery:
            hint = "give the receipt_handle of a message that is in hand"
            raise InvalidParameterError(f"{receipt_handle!r} is not leased", field="receipt_handle", hint=hint)
        lost = await store.reclaim(self.shared.worker, (item.queue,), RESCUE, 1, (key,), force=True)
        await store.settle([lost_settlement(each, RECEIVED, finder=self.shared.worker) for each in lost])

    def inject_message(
        self,
        body: T,
        *,
        delivery_count: int = 1,
        reply_to: Mailbox[R, Any] | str | None = None,
        attributes: Mapping[str, str] | None = None,
        priority: Urgency = "normal",
        message_id: str | None = None,
    ) -> str:
        """Send, also while a connection error is set, what is received as its `delivery_count`-th delivery."""
        check_count(delivery_count, field="delivery_count")
        error, self._error = self._error, None
        try:
            key = self.send(body, reply_to, attributes=attributes, priority=priority, message_id=message_id)
        finally:
            self._error = error
        self._extra[key] = delivery_count - 1
        return key

    def call(self, method: Callable[P, Coroutine[Any, Any, A]], *args: P.args, **kwargs: P.kwargs) -> A:
        if self._error is not None:
            raise self._error
        return super().call(method, *args, **kwargs)

    def shares(self, shared: MailboxStore) -> bool:
        # While it is unreachable, no write to the same store reaches it: replies wait in the outbox.
        return self._error is None and super().shares(shared)

    def _message(self, item: Item, *, taken_at: Millis, ttl: Millis) -> StoreMessage[T, R]:
        extra = self._extra.get(item.id, 0)
        return super()._message(replace(item, attempt=item.attempt + extra), taken_at=taken_at, ttl=ttl)
