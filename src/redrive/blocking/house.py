"""Where something lives that is used without `await`: in the loop thread of this process. For packages beside this one
that have a blocking side of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from redrive.blocking._bridge import sigterm_interrupts
from redrive.blocking._call import Call
from redrive.blocking._process import Closable, this_process
from redrive.errors import AppClosed, CalledFromLoop

__all__ = ["Closable", "House"]

P = ParamSpec("P")
T = TypeVar("T")


class House:
    """`tenant` is opened there, and closed there: by its owner, or when the process ends.

    `what` is called, and `instead` is what to do in an event loop: both for the error of whoever calls from one, with
    `{name}` for the method.
    """

    def __init__(self, tenant: Closable, *, what: str, instead: str) -> None:
        self._tenant = tenant
        self._what = what
        self._instead = instead
        self._lives = 0
        self._home: asyncio.AbstractEventLoop | None = None

    @property
    def ending(self) -> bool:
        """Whether this process ends, and all that lives in its loop."""
        return this_process().ending

    def move_in(self, opening: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with self._loop(opening) as (loop, leaving):
            Call(loop, "open", opening).result()
            leaving["stays"] = self._tenant
        self._lives, self._home = os.getpid(), loop

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method in the loop, and wait for it."""
        home = self._home
        # The private one answers None where the public one raises, which would be a good part of what a call costs.
        in_loop = asyncio._get_running_loop() is not None  # noqa: SLF001
        if home is not None and self._lives == os.getpid() and not in_loop:
            # What nearly every call is: the loop stays while the tenant does, so nobody need be announced.
            return Call(home, method.__name__, partial(method, *args, **kwargs)).result()
        with self._loop(method) as (loop, _):
            return Call(loop, method.__name__, partial(method, *args, **kwargs)).result()

    def begin(self, method: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run it in the loop, and do not wait for it."""
        with self._loop(self.begin) as (loop, _):
            Call(loop, "begin", method).start()

    def work(
        self, method: Callable[[], Coroutine[Any, Any, None]], *stops: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run it until it ends. Each interruption (Ctrl-C, SIGTERM) calls the next of `stops`, and waits on."""
        with self._loop(method) as (loop, _), sigterm_interrupts():
            working = Call(loop, method.__name__, method)

            def stop(how: Callable[[], Coroutine[Any, Any, None]]) -> None:
                # A stop before the start would not be heard; to start it again does nothing.
                working.start()
                Call(loop, method.__name__, how).start()

            working.result(*[partial(stop, each) for each in stops])

    def tell(self, callback: Callable[[], object]) -> None:
        """Call it in the loop, from any thread or signal handler, and do not wait. Nothing if nobody lives there."""
        home = self._home
        if home is not None and self._lives == os.getpid() and not home.is_closed():
            home.call_soon_threadsafe(callback)

    @contextmanager
    def _loop(self, method: Callable[..., object]) -> Iterator[tuple[asyncio.AbstractEventLoop, dict[str, Closable]]]:
        """The loop, which goes on after this only for whoever stays."""
        self._refuse_in_loop(method)
        if self._lives not in (0, os.getpid()):
            said = "it was opened in another process, and its worker is there; nothing was written"
            raise AppClosed(said, hint="open a new one after the fork")
        leaving: dict[str, Closable] = {}
        if self._home is not None:
            yield self._home, leaving
            return
        process, guest = this_process(), object()
        loop = process.enter(guest)
        try:
            yield loop, leaving
        finally:
            process.leave(guest, **leaving)

    def move_out(self, closing: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # What lives in the parent is the parent's to close.
        if self._lives in (0, os.getpid()):
            self.call(closing)
            self._home = None
            this_process().part(self._tenant)

    def _refuse_in_loop(self, method: Callable[..., object]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        name = method.__qualname__
        said = f"{self._what.format(name=name)} would block the event loop that runs in this thread"
        raise CalledFromLoop(said, hint=self._instead.format(name=name.rpartition(".")[2]))
