"""Every error redrive raises on purpose.

RedriveError
├── ConfigError              a value the caller passed cannot be used; names the field and the fix (also a ValueError)
│   ├── BadDuration
│   ├── BadFilter            carries the text and the column
│   ├── BadStoreURL
│   ├── BadDependency        after= names an item that does not exist, or items that wait for each other
│   ├── BadImport            letters that cannot be taken in, with every fault and its place
│   ├── BadSchedule          a cron text, interval or time zone that cannot be kept
│   ├── BadSettings          the settings file, the environment or flags; carries every fault
│   ├── InvalidReceipt       a receipt that cannot be sent; carries every fault
│   ├── EncryptionKeyMissing a queue is encrypted, and this process lacks the key; nothing was stored; carries both
│   ├── MissingExtra         an optional package is needed; names the pip command
│   ├── BindingConflict      this process has the database open through another SQLite library
│   └── UnsafeFileSystem     SQLite's locks cannot be relied on there
├── PayloadError
│   ├── PayloadTooLarge
│   ├── PayloadNotSerialisable
│   └── PayloadUndecodable   stored bytes that the handler cannot take; the item dies with its bytes
├── UnknownQueue
├── QueueFull                the queue is at its capacity; nothing was added; carries queue, fill and capacity
├── NotFound                 no such item
├── Conflict                 somebody else changed it first, or the set is not the one you saw
├── AppClosed
├── CalledFromLoop           a blocking call where an event loop runs; names the import to use (also a RuntimeError)
├── WaitTimeout              the wait ended; the item goes on
├── ItemFailed               what `wait` raises when the item is dead or cancelled
├── LeaseLost                only the current lease holder's result counts
├── ReceiptError             a receipt was not delivered this time; carries the target's code, if it gave one
│   ├── ReceiptRefused       the target will never take it: trying again is useless
│   ├── ReceiptLimited       the target asks for patience; carries how long, if it said so
│   ├── ReceiptServerError   the target failed, or its answer cannot be read
│   ├── ReceiptUnreachable   nobody answered
│   └── ReceiptSuperseded    it is not owed any more: the lease or the task is gone, or a final receipt exists
├── WebhookError             a webhook was not delivered this time; carries the status of the answer, if there was one
│   ├── WebhookRejected      trying again is useless
│   └── WebhookFailed        it is tried again; carries how long the endpoint asks to wait, if it said so
├── NotificationFailed       a channel did not take an alert; carries the HTTP status, and whether it ever will
├── TargetDenied             an outgoing request whose target is not on the public internet, and not allowed
├── BadSignature             a signed request that does not verify; carries the header that is wrong
├── MailboxError             everything that goes wrong with a mailbox
│   ├── ReceiptHandleExpiredError   the message is somebody else's by now: timed out, settled before, or given out again
│   ├── MailboxFullError     nothing was added
│   ├── SerializationError   a body that cannot be written, or not be read as what the mailbox expects
│   ├── MailboxConnectionError      the store does not answer
│   ├── ReplyNotAvailableError      the message names nobody who waits for an answer
│   ├── MessageFinalizedError       it was acknowledged or given back: too late to answer
│   ├── InvalidParameterError       a value that the caller passed; names it and the fix (also a ValueError)
│   ├── MailboxResolutionError      nobody knows a mailbox of that name; carries it
│   └── MailboxClosedError
└── StoreError
    ├── StoreUnavailable     nothing was written
    │   ├── StoreFull        no space is left; an operator can still discard and prune
    │   └── StoreForbidden   the file or its folder may not be read or written
    ├── OutcomeUnknown       the write may or may not be there; repeat it with the same id, it will not double
    ├── StoreCorrupt
    ├── DecryptionFailed     a body is encrypted with a key that this process does not have, or with another one
    └── StoreTooNew          made by a newer redrive
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class RedriveError(Exception):
    """Base of all. `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(RedriveError, ValueError):
    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message, hint=hint)
        self.field = field

    def named(self, field: str) -> Self:
        """The same error, of a field that has another name for the caller."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        ConfigError.__init__(made, self.message.removeprefix(f"{self.field}: "), field=field, hint=self.hint)
        return made


class BadDuration(ConfigError):
    pass


class BadFilter(ConfigError):
    """`column` is 1-based and points at the first character that cannot be read."""

    def __init__(self, message: str, *, text: str, column: int, hint: str = "") -> None:
        super().__init__(f"column {column}: {message}\n  {text}\n  {' ' * (column - 1)}^", field="filter", hint=hint)
        self.text = text
        self.column = column


class BadStoreURL(ConfigError):
    pass


class BadDependency(ConfigError):
    pass


class BadSchedule(ConfigError):
    pass


class BadSettings(ConfigError):
    """`faults`: one text for each, with the setting, what is wrong and where it came from."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        some = "a setting" if len(faults) == 1 else f"{len(faults)} settings"
        hint = "redrive config check tells them one by one"
        super().__init__(f"{some} cannot be used: {'; '.join(faults)}", hint=hint)
        self.faults = faults


class InvalidReceipt(ConfigError):
    """`faults`: one text for each, with the field, what is wrong and the fix."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__(f"it cannot be sent: {'; '.join(faults)}", field="receipt")
        self.faults = faults


class MissingExtra(ConfigError):
    pass


KEYS_HINT = "give it the keys: Redrive(..., encryption=Keyring(...)) or REDRIVE_ENCRYPTION_KEYS"


class EncryptionKeyMissing(ConfigError):
    """`queue` is encrypted, and this process has no key to encrypt with; or a payload of it is encrypted with `key`,
    which this process does not have.
    """

    def __init__(self, queue: str, key: str = "") -> None:
        text = f"queue {queue!r} is encrypted and this process has no encryption key; nothing was stored"
        if key:
            why = f"a payload of it is encrypted with key {key!r}, which this process does not have"
            text = f"queue {queue!r}: {why}; nothing was changed"
        super().__init__(text, field="encryption", hint=KEYS_HINT)
        self.queue = queue
        self.key = key


class BindingConflict(ConfigError):
    pass


class UnsafeFileSystem(ConfigError):
    pass


class BadImport(ConfigError):
    """Letters that cannot be taken in, so that none was; `faults` has the first of them, each with its place."""

    def __init__(self, faults: tuple[str, ...], *, more: int = 0) -> None:
        count = len(faults) + more
        some = "1 fault" if count == 1 else f"{count:,} faults"
        hint = "mend them and import again; what is there already is left as it is"
        super().__init__(f"{some}, nothing was taken in: {'; '.join(faults)}", field="letters", hint=hint)
        self.faults = faults
        self.more = more


class PayloadError(RedriveError):
    pass


class PayloadTooLarge(PayloadError):
    pass


class PayloadNotSerialisable(PayloadError):
    pass


class PayloadUndecodable(PayloadError):
    pass


class UnknownQueue(RedriveError):
    pass


class QueueFull(RedriveError):
    """`fill` is how many items waited or ran when these were refused. `member`: for which queue they were, where it is
    the capacity of a family (`queue`) that was reached; else empty.
    """

    def __init__(self, queue: str, *, fill: int, capacity: int, more: int = 1, member: str = "") -> None:
        items = "1 item" if more == 1 else f"{more:,} items"
        what, whose = ("family", f" of {member!r}") if member else ("queue", "")
        super().__init__(
            f"{what} {queue!r} holds {fill:,} of at most {capacity:,}; {items}{whose} refused, nothing was added",
            hint="try again when workers have caught up, or raise its capacity",
        )
        self.queue = queue
        self.member = member
        self.fill = fill
        self.capacity = capacity


class NotFound(RedriveError):
    pass


class Conflict(RedriveError):
    pass


class AppClosed(RedriveError):
    pass


class CalledFromLoop(RedriveError, RuntimeError):
    pass


class WaitTimeout(RedriveError, TimeoutError):
    pass


class ItemFailed(RedriveError):
    def __init__(self, message: str, *, item_id: str, state: str, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.item_id = item_id
        self.state = state
        self.reason = reason


class LeaseLost(RedriveError):
    pass


class ReceiptError(RedriveError):
    """`code` is the target's own word for it, or its HTTP status; "" if there is none. `retry_after`: so many seconds
    it asks to wait, None if it did not say.
    """

    def __init__(self, message: str, *, code: str = "", retry_after: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.retry_after = retry_after


class ReceiptRefused(ReceiptError):
    pass


class ReceiptLimited(ReceiptError):
    pass


class ReceiptServerError(ReceiptError):
    pass


class ReceiptUnreachable(ReceiptError):
    pass


class ReceiptSuperseded(ReceiptError):
    pass


class WebhookError(RedriveError):
    """`status` is that of the answer, None if there was none. `retry_after`: so many seconds it asks to wait."""

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status or None
        self.retry_after: float | None = None


class WebhookRejected(WebhookError):
    pass


class WebhookFailed(WebhookError):
    pass


class NotificationFailed(RedriveError):
    """`status`: of the HTTP answer, 0 without one. `useless`: the same message will be refused again. `retry_after`: so
    many milliseconds the channel asks to wait.
    """

    def __init__(
        self, message: str, *, status: int = 0, useless: bool = False, retry_after: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.useless = useless
        self.retry_after = retry_after


class TargetDenied(RedriveError):
    """The target of an outgoing request is not on the public internet, and nobody allowed it."""


class BadSignature(RedriveError):
    """`part` is the name of the header that is wrong."""

    def __init__(self, message: str, *, part: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.part = part


class MailboxError(RedriveError):
    pass


class ReceiptHandleExpiredError(MailboxError):
    pass


class MailboxFullError(MailboxError):
    pass


class SerializationError(MailboxError):
    pass


class MailboxConnectionError(MailboxError):
    pass


class ReplyNotAvailableError(MailboxError):
    pass


class MessageFinalizedError(MailboxError):
    pass


class InvalidParameterError(MailboxError, ValueError):
    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message, hint=hint)
        self.field = field


class MailboxResolutionError(MailboxError):
    """`identifier` is the name that nobody knows."""

    def __init__(self, identifier: str, *, hint: str = "") -> None:
        super().__init__(f"no mailbox is known by the name {identifier!r}", hint=hint)
        self.identifier = identifier


class MailboxClosedError(MailboxError):
    pass


class StoreError(RedriveError):
    pass


class StoreUnavailable(StoreError):
    pass


class StoreFull(StoreUnavailable):
    pass


class StoreForbidden(StoreUnavailable):
    pass


class OutcomeUnknown(StoreError):
    pass


class StoreCorrupt(StoreError):
    pass


class DecryptionFailed(StoreError):
    """`key` is the id of the key that the body says it is encrypted with."""

    def __init__(self, message: str, *, key: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


class StoreTooNew(StoreError):
    pass
