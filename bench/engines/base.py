"""What the rows ask of an engine: fresh stores, copies of them, stores with a million rows, and facts about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path


class Engine(ABC):
    """Stores have names here; each name is one store, made anew by whoever asks for it."""

    name: str

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    @abstractmethod
    def empty(self, store: str) -> str:
        """The URL of a store with nothing in it, not even a schema."""

    @abstractmethod
    def copy(self, template: str, store: str) -> str:
        """The URL of a store with all that another has, wholly on the disk before anything is measured."""

    @abstractmethod
    def drop(self, store: str) -> None: ...

    @abstractmethod
    def left(self) -> set[str]:
        """The names of the stores that are there."""

    @abstractmethod
    def waiting(self, store: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
        """The URL of a new store with items that are due, due within the days to come, or in a paused queue."""

    @abstractmethod
    def letters(self, store: str, count: int) -> str:
        """The URL of a new store with open letters of many causes, over the last month."""

    @abstractmethod
    def lax(self, url: str) -> AbstractContextManager[str]:
        """The same store without waiting for the disk, for as long as this is entered."""

    @abstractmethod
    def facts(self) -> dict[str, object]: ...

    def rest(self) -> None:
        """Until what was written so far is on the disk, and paid for by nobody who is measured next."""
        return

    def tidied(self, url: str) -> str:
        """The same store, after what its server does with it by itself within a minute."""
        return url

    def server_cpu(self) -> float:
        """CPU seconds that the server has taken so far. None where the engine lives in its callers."""
        return 0.0

    def watch(self) -> None:
        """Forget what the server has counted so far."""
        return

    def watched(self, url: str, items: int) -> str:
        """Where the server's time went since `watch`, per item; empty where there is no server."""
        del url, items
        return ""
