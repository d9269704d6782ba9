"""The interface of all mailboxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from redrive.mailboxes.boxes.message import Message
from redrive.stores.clock import Clock, SystemClock

T = TypeVar("T")
R = TypeVar("R")


class Mailbox(ABC, Generic[T, R]):
    """`T` is the type of the bodies, `R` that of the replies to them. Derive from it for a mailbox of your own."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @property
    def clock(self) -> Clock:
        return SystemClock()

    @property
    def body_type(self) -> Any:
        """What bodies are read as; None: plain data."""
        return None

    def bind(self, body_type: Any) -> None:
        """Called by a loop with the type of its bodies; a type that the mailbox has is kept."""

    def mark_dead_letters(self) -> None:
        """Called by loops that use it for dead letters."""

    @abstractmethod
    def send(self, body: T, reply_to: Mailbox[R, Any] | str | None = None) -> str:
        """Gives the id of the message."""

    @abstractmethod
    def receive(
        self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
    ) -> Sequence[Message[T, R]]: ...

    @abstractmethod
    def purge(self) -> int:
        """Remove all messages; how many there were."""

    @abstractmethod
    def approximate_count(self) -> int:
        """Of all messages, also those that are leased."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def reply_address(self) -> str:
        """Where replies to it go, besides its name: an object of this process, for as long as it is there."""
        token: str | None = self.__dict__.get("_token")
        if token is None:
            token = self.__dict__["_token"] = f"here-{uuid4().hex[:12]}"
            objects[token] = self
        return token


objects: WeakValueDictionary[str, Mailbox[Any, Any]] = WeakValueDictionary()
"""Mailboxes of users' own classes that wait for replies, by their address."""
