"""What a loop does on the side: letters and replies that belong on another store are taken there.

At the start, each minute, and whenever the loop left something to be taken. What cannot be taken now stays where it is
safe, and is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from redrive.core.item import Millis
from redrive.errors import MailboxError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.loops import outbox
from redrive.stores.clock import Clock

EACH: Millis = 60_000


class Errands:
    """`replies_are`: the type of replies, for mailboxes that do not say what they take."""

    def __init__(
        self,
        requests: Mailbox[Any, Any],
        graves: Sequence[Mailbox[Any, Any]],
        clock: Clock,
        replies_are: Callable[[], Any],
    ) -> None:
        self._replies_are = replies_are
        self._requests = requests if isinstance(requests, StoreMailbox) else None
        self._graves = graves
        self._elsewhere = [each for each in graves if not self.shares_store(each)]
        self._clock = clock
        self._next: Millis | None = None

    def shares_store(self, mailbox: Mailbox[Any, Any]) -> bool:
        ours = self._requests
        return ours is not None and isinstance(mailbox, StoreMailbox) and mailbox._shares(ours._place)

    def has_room(self, mailbox: Mailbox[Any, Any]) -> bool:
        """Whether another store takes one more. On our own store the write itself tells."""
        room = getattr(mailbox, "max_size", None)
        if room is None or self.shares_store(mailbox):
            return True
        try:
            return mailbox.approximate_count() < int(room)
        except MailboxError:
            # It is not there now: the letter waits on our store until it is.
            return True

    def announce(self) -> None:
        """Let the dead-letter mailboxes of our store be known to it, with the room they have: it asks nobody else."""
        for grave in self._graves:
            if isinstance(grave, StoreMailbox) and self.shares_store(grave):
                grave._place.call(grave._prepare)

    def soon(self) -> None:
        """Go at the next occasion."""
        self._next = None

    def after(self, message: Message[Any, Any], grave: Mailbox[Any, Any] | None = None) -> None:
        """A message has ended, and so a reply or a letter may have to be taken elsewhere."""
        answers = message.reply_to if message.reply_to_name is not None else None
        unresolved = answers is None and message.reply_to_name is not None
        if unresolved or any(each is not None and not self.shares_store(each) for each in (answers, grave)):
            self._next = None

    def run(self) -> None:
        """If it is time for it."""
        now = self._clock.monotonic()
        if self._requests is None or (self._next is not None and now < self._next):
            return
        self._next = now + EACH
        source = self._requests
        self._go(source.name, "replies", lambda: outbox.forward(source, reply_type=self._replies_are()))
        if not self._elsewhere:
            return
        # Most loops have their dead letters where the messages are.
        from redrive.mailboxes.letters import transfer

        for grave in self._elsewhere:
            self._go(source.name, f"dead letters for {grave.name}", lambda grave=grave: transfer.move(source, grave))  # type: ignore[misc]

    def _go(self, source: str, what: str, errand: Callable[[], int]) -> None:
        try:
            errand()
        except Exception as error:  # noqa: BLE001 - a loop does not end because of another store
            if isinstance(error, MailboxError) and self._requests is not None and self._requests.closed:
                return  # by another thread, or with the process: whoever comes next delivers it
            text = f"Not delivered yet: {what}"
            logs.say(logging.WARNING, text, source_mailbox=source, error=logs.said(error))
