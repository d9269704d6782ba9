"""A store that does not answer: it is asked again after longer and longer pauses, and people are told."""

from __future__ import annotations

from redrive.mailboxes import logs

LONGEST_PAUSE = 30.0
"""Seconds between two questions to a store that does not answer; the first pause is one second, each twice the last."""


class Outage:
    """Of the store of one mailbox. `pause` is 0 while it answers."""

    def __init__(self, mailbox: str) -> None:
        self._mailbox = mailbox
        self.pause = 0.0

    def goes_on(self, error: Exception) -> float:
        """Seconds to wait before the next question."""
        self.pause = min(self.pause * 2 or 1.0, LONGEST_PAUSE)
        logs.unreachable(mailbox=self._mailbox, error=error, retry_in_seconds=self.pause)
        return self.pause

    def is_over(self) -> None:
        """Said at every answer."""
        if self.pause:
            self.pause = 0.0
            logs.reachable(mailbox=self._mailbox)
