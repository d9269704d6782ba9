"""Mailboxes of somebody's own: they can do what every mailbox can, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive.mailboxes import Mailbox, Message


class Around(Mailbox[Any, Any]):
    """Passes on to another, but has none of what only ours can."""

    def __init__(self, inner: Mailbox[Any, Any]) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def closed(self) -> bool:
        return self.inner.closed

    @property
    def clock(self) -> Any:
        return self.inner.clock

    def send(self, body: Any, reply_to: Mailbox[Any, Any] | str | None = None) -> str:
        return self.inner.send(body, reply_to)

    def receive(
        self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
    ) -> Sequence[Message[Any, Any]]:
        return self.inner.receive(max_messages, visibility_timeout, wait_time_seconds)

    def purge(self) -> int:
        return self.inner.purge()

    def approximate_count(self) -> int:
        return self.inner.approximate_count()

    def close(self) -> None:
        self.inner.close()


class Deep(Mailbox[Any, Any]):
    """Is as deep as it is told to be."""

    def __init__(self, count: Callable[[], int], name: str = "requests-dlq") -> None:
        self.count = count
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def closed(self) -> bool:
        return False

    def send(self, body: Any, reply_to: Mailbox[Any, Any] | str | None = None) -> str:
        raise NotImplementedError

    def receive(
        self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
    ) -> Sequence[Message[Any, Any]]:
        return []

    def purge(self) -> int:
        return 0

    def approximate_count(self) -> int:
        return self.count()

    def close(self) -> None:
        pass
