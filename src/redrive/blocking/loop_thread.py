"""The host of a resource that is used without `await`: it is opened, called and closed in the process's loop thread.

For packages beside this one that have a blocking side of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from redrive.blocking._bridge import sigterm_interrupts
from redrive.blocking._call import Call, in_event_loop
from redrive.blocking._process import Closable, this_process
from redrive.errors import AppClosed, CalledFromLoop

__all__ = ["Closable", "LoopThreadHost"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopThreadHost:
    """`resource` is closed by its owner, or when the process ends.

    `what` was called, and `instead` is what to do in an event loop: for the error of a call from one, with `{name}` for
    the method.
    """

    def __init__(self, resource: Closable, *, what: str, instead: str) -> None:
        self._resource = resource
        self._what = what
        self._instead = instead
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def ending(self) -> bool:
        """Whether this process ends, and with it its loop thread."""
        return this_process().ending

    def open(self, opening: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with self._entered(opening) as (loop, leaving):
            Call(loop, "open", opening).result()
            leaving["stays"] = self._resource
        self._pid, self._loop = os.getpid(), loop

    def close(self, closing: Callable[[], Coroutine[Any, Any, object]]) -> None:
        # A resource that was opened in the parent is closed by the parent.
        if self._pid in (0, os.getpid()):
            self.call(closing)
            self._loop = None
            this_process().part(self._resource)

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method in the loop, and wait for it."""
        loop = self._loop
        if loop is not None and self._pid == os.getpid() and not in_event_loop():
            # The usual case: the loop stays while the resource is open, so this call need not keep it.
            return Call(loop, method.__name__, partial(method, *args, **kwargs)).result()
        with self._entered(method) as (loop, _):
            return Call(loop, method.__name__, partial(method, *args, **kwargs)).result()

    def begin(self, method: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run it in the loop, and do not wait for it."""
        with self._entered(self.begin) as (loop, _):
            Call(loop, "begin", method).start()

    def work(
        self, method: Callable[[], Coroutine[Any, Any, None]], *stops: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run it until it ends. Each interruption (Ctrl-C, SIGTERM) calls the next of `stops`, and waits on."""
        with self._entered(method) as (loop, _), sigterm_interrupts():
            working = Call(loop, method.__name__, method)

            def stop(how: Callable[[], Coroutine[Any, Any, None]]) -> None:
                # A stop before the start would have no effect; a second start does nothing.
                working.start()
                Call(loop, method.__name__, how).start()

            working.result(*[partial(stop, each) for each in stops])

    def tell(self, callback: Callable[[], object]) -> None:
        """Call it in the loop, from any thread or signal handler, and do not wait. Nothing if it is not open."""
        loop = self._loop
        if loop is not None and self._pid == os.getpid() and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    @contextmanager
    def _entered(
        self, method: Callable[..., object]
    ) -> Iterator[tuple[asyncio.AbstractEventLoop, dict[str, Closable]]]:
        """The loop, which goes on after the block only for a resource that stays."""
        self._refuse_in_loop(method)
        if self._pid not in (0, os.getpid()):
            text = "it was opened in another process, and its worker is there; nothing was written"
            raise AppClosed(text, hint="open a new one after the fork")
        leaving: dict[str, Closable] = {}
        if self._loop is not None:
            yield self._loop, leaving
            return
        process, guest = this_process(), object()
        loop = process.enter(guest)
        try:
            yield loop, leaving
        finally:
            process.leave(guest, **leaving)

    def _refuse_in_loop(self, method: Callable[..., object]) -> None:
        if not in_event_loop():
            return
        owner = getattr(method, "__self__", None)
        # The class that the caller knows, not the one that has the method.
        classes = [each.__name__ for each in type(owner).__mro__ if not each.__name__.startswith("_")]
        name = method.__qualname__ if owner is None else f"{classes[0]}.{method.__name__}"
        text = f"{self._what.format(name=name)} would block the event loop that runs in this thread"
        raise CalledFromLoop(text, hint=self._instead.format(name=name.rpartition(".")[2]))
