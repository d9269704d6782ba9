"""Mailboxes on a store: a queue, and the open dead letters of the route of the same name, leased in place.

So the mailbox of a DLQPolicy is a view of the letters, and not a second copy of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_origin
from weakref import finalize

from redrive.blocking.handle import Handle
from redrive.blocking.shared_store import Keyring, Store, check_keyring
from redrive.core import durations, typed_codec
from redrive.core import outcome as o
from redrive.core.durations import Duration
from redrive.core.item import Item, Millis, NewItem
from redrive.core.validation import check_clock, check_count, check_has, check_list, check_seconds, check_type
from redrive.core.verbs import QueueChange
from redrive.engine.evidence import plain_failure
from redrive.engine.ids import fresh_id
from redrive.engine.source import QueueSource
from redrive.engine.store_retry import retry_unknown
from redrive.errors import (
    ConfigError,
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxFullError,
    OutcomeUnknown,
    SerializationError,
)
from redrive.events import Events
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.base import Mailbox, objects
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.envelope import enclosed, opened, sealed
from redrive.mailboxes.boxes.message import Message, StoreMessage, acknowledge_all
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.boxes.store import MailboxStore
from redrive.mailboxes.validation import (
    as_parameter,
    check_attributes,
    check_max_messages,
    check_message_id,
    check_name,
    check_priority,
    check_resolver,
    check_visibility,
)
from redrive.office import doors
from redrive.office.said import check_reason
from redrive.stores.clock import Clock

if TYPE_CHECKING:
    from redrive.blocking.loops.stop import Stop
    from redrive.mailboxes.letters.dead_letter_view import DeadLetterView

__all__ = ["Mailbox", "StoreMailbox", "Urgency"]

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
A = TypeVar("A")

Urgency = Literal["high", "normal", "low"]

KEPT: Duration = "1h"
"""For how long what was acknowledged is kept, unless its queue says otherwise."""


class StoreMailbox(Handle, Mailbox[T, R]):
    """A mailbox on a store. Every call blocks and may come from any thread; the first one opens the store.

    `default_ttl`: seconds after which a message that was never received is not given any more; `on_expire`: whether it
    then becomes a dead letter without a mailbox, or is cancelled. Dead letters of the mailbox go to the trash after the
    same time, if it is given: a default never takes a letter. `max_size`: how many messages there may be. `keep`:
    how long acknowledged ones are kept, if the queue has no such setting yet; None for as it is. `encryption`: the keys
    for queues that are encrypted; mailboxes share the connections of those with the same Keyring object.
    """

    name = ""
    body_type: Any = None
    resolver: MailboxResolver | None = None
    default_ttl: Millis = 0
    max_size: int | None = None
    on_expire: Literal["letter", "cancel"] = "letter"
    holds_letters = False
    _usual_ttl: float = 0
    _letter_ttl: Millis = 0
    _keep: Millis | None = None
    _keyring: Keyring | None = None
    _closed = False
    _prepared = False
    _leaving: finalize[..., Any] | None = None

    def __init__(
        self,
        name: str,
        store: str | Store = "sqlite:///redrive.db",
        *,
        body_type: Any = None,
        clock: Clock | None = None,
        resolver: MailboxResolver | None = None,
        default_ttl: float | None = None,
        max_size: int | None = None,
        keep: Duration | None = KEPT,
        dead_letters: bool = False,
        on_expire: Literal["letter", "cancel"] = "letter",
        encryption: Keyring | None = None,
    ) -> None:
        self.name = check_name(name)
        if not isinstance(store, str):
            check_has(store, "info", "open", field="store", hint="give a URL, such as sqlite:///redrive.db")
        check_clock(clock)
        check_resolver(resolver, "resolve_optional")
        self.body_type = typed_codec.check_decodable(body_type)
        self.resolver = resolver
        self.default_ttl = check_seconds(self._usual_ttl if default_ttl is None else default_ttl, field="default_ttl")
        self._letter_ttl = 0 if default_ttl is None else self.default_ttl
        self.max_size = None if max_size is None else check_count(max_size, field="max_size")
        self._keep = None if keep is None else durations.parse(keep, field="keep")
        check_type(dead_letters, bool, field="dead_letters", hint="use True or False")
        self.holds_letters = dead_letters or _is_of_letters(body_type)
        if on_expire not in ("letter", "cancel"):
            message = f"must be 'letter' or 'cancel', got {on_expire!r}"
            raise InvalidParameterError(message, field="on_expire", hint="use letter, cancel")
        self.on_expire = on_expire
        if encryption is not None and not isinstance(store, str):
            hint = "give them to the store, with use_keys, or give a URL"
            raise InvalidParameterError("a store object has its own keys", field="encryption", hint=hint)
        self._store, self._clock = store, clock
        self._keyring = None if encryption is None else check_keyring(encryption)
        self._enter(MailboxStore.enter(store, clock, self._keyring))

    @classmethod
    def of(cls, name: str, shared: MailboxStore) -> StoreMailbox[Any, Any]:
        """The one that is open in this process; else one to send to, which is open as long as the shared store is."""
        known = shared.mailboxes.get(name)
        if known is not None:
            return known
        view: StoreMailbox[Any, Any] = StoreMailbox.__new__(StoreMailbox)
        view.name = check_name(name)
        view._store, view._clock, view._prepared = shared.store, shared.clock, True
        view._use(shared)
        return view

    def _use(self, shared: MailboxStore) -> None:
        self._home = shared
        self._view: DeadLetterView | None = None
        self._source = QueueSource(
            self.name,
            shared.worker,
            shared.store,
            partial(_expired, self.name, self.default_ttl, self.on_expire),
            report=shared.reporter,
            events=shared.events,
            clock=shared.clock,
        )

    def _enter(self, shared: MailboxStore) -> None:
        self._use(shared)
        self._leaving = finalize(self, shared.abandon, id(self))
        self._leaving.atexit = False
        shared.mailboxes[self.name] = self
        if self._letter_ttl:
            shared.tasks.add(id(self), partial(_expire, shared, self.name, self._letter_ttl))

    @property
    def shared(self) -> MailboxStore:
        """The shared store of this process: a child of the process that made this mailbox gets its own."""
        if self._home.pid != os.getpid():
            self._enter_in_child()
        return self._home

    def _enter_in_child(self) -> None:
        if self._home.store.info().engine == "memory":
            text = "its messages are in the memory of another process, of which this one is a child"
            raise MailboxConnectionError(text, hint="use a store that both can reach, as SQLiteMailbox")
        if self._leaving is not None:
            self._leaving.detach()
        self._prepared = False
        self._enter(MailboxStore.enter(self._store, self._clock, self._keyring))

    def call(self, method: Callable[P, Coroutine[Any, Any, A]], *args: P.args, **kwargs: P.kwargs) -> A:
        """The one way to the store, of the mailbox and of its messages."""
        try:
            return self.shared.call(method, *args, **kwargs)
        except MailboxConnectionError as error:
            # A retry is pointless, unless the write may have been done.
            if self._home.closed and not isinstance(error.__cause__, OutcomeUnknown):
                raise MailboxClosedError(f"mailbox {self.name!r} was closed meanwhile; nothing was done") from error
            raise

    def _message(self, item: Item, *, taken_at: Millis, ttl: Millis) -> StoreMessage[T, R]:
        return StoreMessage(self, item, taken_at=taken_at, ttl=ttl)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{' (closed)' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        return self._closed or self._home.closed

    @property
    def clock(self) -> Clock:
        return self._home.clock

    @property
    def events(self) -> Events:
        """What happens to messages of all mailboxes of this process on this store; called in a thread of redrive."""
        return self.shared.events

    def bind(self, body_type: Any) -> None:
        if self.body_type is None:
            self.body_type = typed_codec.check_decodable(body_type)
            self.holds_letters = self.holds_letters or _is_of_letters(body_type)

    def mark_dead_letters(self) -> None:
        """What is sent to it from now on is stored as a letter, and not as a message."""
        self.holds_letters = True

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        body: T,
        reply_to: Mailbox[R, Any] | str | None = None,
        *,
        attributes: Mapping[str, str] | None = None,
        priority: Urgency = "normal",
        delay: float = 0,
        ttl: float | None = None,
        message_id: str | None = None,
    ) -> str:
        """Durable when it returns. Gives the id, which is `message_id` if that is given: sent again it adds nothing.

        `reply_to` is a mailbox, or the name of one. `delay` and `ttl` are seconds: before it can be received, and after
        which it is not given any more. Raises MailboxFullError, SerializationError, MailboxConnectionError.
        """
        self.check_open()
        key = fresh_id() if message_id is None else check_message_id(message_id)
        urgency = check_priority(priority)
        seconds = check_seconds(delay, field="delay")
        if self.holds_letters or isinstance(body, DeadLetter):
            if delay:
                raise InvalidParameterError("a dead letter cannot be delayed", field="delay", hint="leave it out")
            how: dict[str, Any] = {"attributes": check_attributes(attributes), "priority": urgency, "message_id": key}
            return self.call(self._put_letter, body, *self._address_of(reply_to), **how)
        payload = self.seal(body, reply_to, attributes, ttl)
        item = NewItem(key, self.name, payload, seconds, priority=urgency, release=self.shared.release)
        self.call(self.put, item, message_id is not None)
        return key

    def send_many(
        self,
        bodies: Iterable[T],
        reply_to: Mailbox[R, Any] | str | None = None,
        *,
        attributes: Mapping[str, str] | None = None,
        priority: Urgency = "normal",
        delay: float = 0,
        ttl: float | None = None,
    ) -> list[str]:
        """All of them in one write, or none; the ids in their order. As `send`, which see."""
        self.check_open()
        given = check_list(bodies, field="bodies", hint="give a list of bodies, or use send for one")
        if self.holds_letters or any(isinstance(body, DeadLetter) for body in given):
            raise InvalidParameterError("dead letters are sent one by one", field="bodies", hint="use send for each")
        urgency, seconds = check_priority(priority), check_seconds(delay, field="delay")
        payloads: list[bytes] = []
        for number, body in enumerate(given, 1):
            try:
                payloads.append(self.seal(body, reply_to, attributes, ttl))
            except SerializationError as error:
                text = f"bodies: number {number} of {len(given)}: {error.message}"
                raise SerializationError(text, hint=error.hint) from error
        facts: dict[str, Any] = {"priority": urgency, "release": self.shared.release}
        items = [NewItem(fresh_id(), self.name, payload, seconds, **facts) for payload in payloads]
        if items:
            self.call(self._put_many, items)
        return [item.id for item in items]

    async def _put_many(self, items: list[NewItem]) -> None:
        await self._prepare_to_put()
        await retry_unknown(lambda: self.shared.store.put(items))

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> tuple[str, ...]:
        """Acknowledge messages of this mailbox in one write. Gives the ids of those that were not ours any more."""
        self.check_open()
        given = check_list(messages, field="messages", hint="give a list of messages, or use message.acknowledge()")
        foreign = [each for each in given if not isinstance(each, StoreMessage) or each.mailbox_name != self.name]
        if foreign:
            hint = f"give messages that {self.name!r}.receive() gave"
            raise InvalidParameterError(f"{foreign[0]!r} is not of this mailbox", field="messages", hint=hint)
        return acknowledge_all(cast("list[StoreMessage[T, R]]", given), self.call)

    def seal(
        self,
        body: T,
        reply_to: Mailbox[R, Any] | str | None,
        attributes: Mapping[str, str] | None,
        ttl: float | None = None,
    ) -> bytes:
        """The payload of a message to this mailbox."""
        name, at = self._address_of(reply_to)
        envelope = enclosed(
            body,
            self.name,
            expected=self.body_type,
            reply_to=name,
            reply_at=at,
            attributes=check_attributes(attributes),
            ttl=None if ttl is None else check_seconds(ttl, field="ttl"),
        )
        return typed_codec.check_size(sealed(envelope), to=self.name)

    def _address_of(self, reply_to: object) -> tuple[str, str]:
        """The name, and where it is if it is not here."""
        if reply_to is None:
            return "", ""
        if isinstance(reply_to, str):
            return check_name(reply_to, field="reply_to"), ""
        if not isinstance(reply_to, Mailbox):
            hint = "give a mailbox, or the name of one"
            raise InvalidParameterError(f"a {type(reply_to).__name__} is no mailbox", field="reply_to", hint=hint)
        at = reply_to.reply_address()
        return reply_to.name, "" if at == self.reply_address() else at

    def reply_address(self) -> str:
        return self.shared.fingerprint

    def shares(self, shared: MailboxStore) -> bool:
        """Whether one write to that store can reach it, too."""
        return self.shared is shared

    async def _prepare_to_put(self) -> None:
        await self.prepare()
        if not self._prepared:
            text = f"mailbox {self.name!r} holds more than {self.max_size:,} messages; nothing was added"
            raise MailboxFullError(text, hint="work off what it holds, or open it with a larger max_size")

    async def put(self, item: NewItem, named: bool) -> None:  # noqa: FBT001 - called through the shared store
        await self._prepare_to_put()
        shared = self.shared
        added, _ = await retry_unknown(lambda: shared.put(item))
        if named and not added:
            await shared.check_same_queue(item)

    async def _put_letter(self, body: T, reply_to: str, reply_at: str, **how: Any) -> str:
        from redrive.mailboxes.letters.store_dead_letter import store_dead_letter

        await self.prepare()
        return await store_dead_letter(self.shared, self.name, body, reply_to=reply_to, reply_at=reply_at, **how)

    # --- receiving --------------------------------------------------------------------------------------------------

    def receive(
        self,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
        *,
        stop: Stop | None = None,
    ) -> Sequence[Message[T, R]]:
        """Up to `max_messages` (1 to 10) that are the caller's alone for `visibility_timeout` seconds (0 to 43,200).

        Waits up to `wait_time_seconds` for the first, and never for a second. Nothing once it is closed. `stop` ends
        the waiting when it is set.
        """
        limit = check_max_messages(max_messages)
        ttl = check_visibility(visibility_timeout)
        wait = check_seconds(wait_time_seconds, field="wait_time_seconds")
        if self._closed:
            return []
        try:
            return self.call(self._take, limit, ttl, wait, stop)
        except (MailboxClosedError, MailboxConnectionError):
            # Closed by another thread while this one was on its way.
            if self.closed:
                return []
            raise

    async def _take(self, limit: int, ttl: Millis, wait: Millis, stop: Stop | None) -> list[StoreMessage[T, R]]:
        await self.prepare()
        look = partial(self._look, limit, ttl)
        return await self.shared.receive(self.name, look, wait, stop=stop, closed=lambda: self.closed)

    async def _look(self, limit: int, ttl: Millis) -> list[StoreMessage[T, R]]:
        taken_at = self.clock.monotonic()
        items = await self._source.take(limit, ttl)
        if not items:
            return await self._letters(limit, ttl)
        return [self._message(item, taken_at=taken_at, ttl=ttl) for item in items]

    async def _letters(self, limit: int, ttl: Millis) -> list[StoreMessage[T, R]]:
        """Open letters under this name, as messages."""
        from redrive.mailboxes.letters.dead_letter_view import DeadLetterView

        if self._view is None:
            self._view = DeadLetterView(self.shared, self.name, keep=self._letter_ttl)
        return list(await self._view.receive(self, limit, ttl))

    async def prepare(self) -> None:
        """In the loop, before the first use: the queue is declared, with what was asked of it."""
        if self._prepared:
            return
        store = self.shared.store
        unset = self._keep is not None and (await store.settings(self.name)).keep is None
        await store.configure(self.name, QueueChange(keep=self._keep) if unset else QueueChange())
        await doors.mark(store, self.name, "mailboxes")
        if self.max_size is not None:
            try:
                await store.configure_route(self.name, self.max_size)
                await store.configure(self.name, QueueChange(capacity=self.max_size))
            except ConfigError:
                # It holds more than that already. So it is full, and tried again with the next call.
                return
        self._prepared = True

    # --- the rest ---------------------------------------------------------------------------------------------------

    def purge(self, *, reason: str = "purged") -> int:
        """Remove all messages, and all letters under this name, into the trash. How many there were.

        Leased messages are not counted: they end when they are given back, and may still be acknowledged. The audit
        keeps the reason, with the name of this process as the actor.
        """
        self.check_open()
        from redrive.office.bulk import purge

        why = as_parameter(check_reason, reason)
        return self.call(purge, self.shared.store, self.name, self.shared.worker, why)

    def approximate_count(self) -> int:
        """Of all messages: those that wait, those in hand, and letters under this name."""
        self.check_open()
        return self.call(self.shared.count, self.name)

    def expire(self) -> int:
        """Discard letters under this name that are older than `default_ttl`; how many. Done once a minute anyway."""
        self.check_open()
        return self.call(_expire, self.shared, self.name, self._letter_ttl) if self._letter_ttl else 0

    def close(self) -> None:
        """Those who wait in `receive` get nothing, at once. What is stored stays. May be called twice."""
        if self._closed or self._leaving is None:
            return
        if self._home.pid == os.getpid():
            self._home.check_leaving()
        self._closed = True
        self._leaving.detach()
        home = self._home
        home.tasks.remove(id(self))
        if home.mailboxes.get(self.name) is self:
            del home.mailboxes[self.name]
        home.notify_from_thread(self.name)
        if home.pid == os.getpid():
            home.leave()

    def resolve(self, name: str, at: str) -> Mailbox[Any, Any] | None:
        """The mailbox for replies, None if it cannot be found: any sender may write a bad address into a message, which
        must not keep the message from being processed, nor may a resolver that fails.
        """
        try:
            found = self._look_up(name, at)
        except Exception as error:  # noqa: BLE001 - see above
            logs.log(logging.WARNING, "Mailbox not resolved", mailbox=name, error=error)
            return None
        return found if isinstance(found, Mailbox) else None

    def _look_up(self, name: str, at: str) -> Mailbox[Any, Any] | None:
        """By the resolver if there is one, else on the store that the message names."""
        if self.resolver is not None:
            return self.resolver.resolve_optional(name)
        if at.startswith("here-"):
            return objects.get(at)
        shared = MailboxStore.find(at) if at else self.shared
        return None if shared is None else StoreMailbox.of(name, shared)

    def check_open(self) -> None:
        if self._closed:
            raise MailboxClosedError(f"mailbox {self.name!r} is closed; nothing was done")


def _is_of_letters(body_type: Any) -> bool:
    return (get_origin(body_type) or body_type) is DeadLetter


async def _expire(shared: MailboxStore, name: str, ttl: Millis) -> int:
    from redrive.mailboxes.letters.dead_letter_view import expire

    return await expire(shared.store, name, ttl)


def _expired(mailbox: str, default_ttl: Millis, on_expire: str, item: Item) -> o.Outcome | None:
    """The outcome of a message that is older than its ttl, or the mailbox's; None if it is not, or was received before:
    then the policy of its loop decides. The age is by the store's clock, since it was sent or replayed.
    """
    if item.attempt > 1:
        return None
    ttl = default_ttl
    if b'"ttl"' in item.payload:
        own = opened(item.payload).ttl
        ttl = ttl if own is None else own
    age = (item.leased_at or 0) - item.renewed_at
    if not ttl or age < ttl:
        return None
    if on_expire == "cancel":
        return o.Cancelled("expired")
    text = f"it was not received in time: sent {age / 1000:,.0f} s ago, which is more than its time to live"
    failure = plain_failure("redrive.MessageExpired", text, "expired", key=f"expired in {mailbox}")
    return o.Expired(failure, "expired")
