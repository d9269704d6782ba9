"""Your own app, with its handlers, on a store in memory and a fake clock, for as long as a test lasts.

    from shop.tasks import app      # Redrive("sqlite:///shop.db"), used all over the program

    with sandbox(app) as clock:
        await sign_up("ada@example.com")
        await assert_enqueued(app, "emails")
        await drain(app)

Nothing of it touches the app's own store, and afterwards the app is as it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from redrive import blocking
from redrive.app import Redrive
from redrive.app.internals import parts_of
from redrive.core.item import NewItem
from redrive.core.verbs import NewEntry, PutResult
from redrive.errors import ConfigError
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing import _inside
from redrive.testing._inside import AnyApp
from redrive.testing._relay import Answer, P, Relay
from redrive.testing.clock import FakeClock


@contextmanager
def sandbox(app: AnyApp, *, clock: FakeClock | None = None, store: Store | None = None) -> Iterator[FakeClock]:
    """The app is open in the block. A program that opens and closes it there may, as often as it likes.

    A plain `with`, in async tests too, and for apps of either colour. Handlers and subscribers that are added in the
    block are gone after it. `store` is one in memory, such as `FaultyStore(MemoryStore(clock))`; name its clock then.
    """
    if store is not None and clock is None:
        raise ConfigError("the store brings a clock", field="clock", hint="pass the one it was made with")
    time = FakeClock() if clock is None else clock
    inner = _inside.plain(app)
    lasting = _Lasting(MemoryStore(time) if store is None else store, inner)
    with _inside.bound(inner, lasting, time):
        try:
            yield time
        finally:
            # Its calls keep the loop thread running, which other apps may not need.
            if isinstance(app, blocking.Redrive) and parts_of(inner).loop is not None:
                app.close()


class _Lasting(Relay):
    """Is there until the sandbox ends, so that a test can look at it when the program has closed its app."""

    def __init__(self, store: Store, app: Redrive) -> None:
        super().__init__(store)
        self._app = app

    async def close(self) -> None:
        parts_of(self._app).state = "new"

    async def put(
        self,
        items: Sequence[NewItem],
        within: object | None = None,  # noqa: ARG002
        *,
        audit: NewEntry | None = None,
    ) -> PutResult:
        """A store in memory has no transaction to join: what a program enqueues within its own is there at once."""
        return await self.store.put(items, audit=audit)

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        return await verb(*args, **kwargs)
