"""What wants to be written just before a worker of this process writes, so that this worker gets it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Along(Protocol):
    """Whoever puts work for the worker beside it. A store with one writer has both writes in one commit."""

    def attend(self, wake: Callable[[], None] | None) -> None:
        """A worker comes by from now on, at once when `wake` is called. None: none does any more."""

    def begin(self) -> bool:
        """The worker is about to write. True: something goes to the store ahead of it, in the next turn of the loop."""
