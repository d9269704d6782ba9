"""Shutdown by signals: SIGTERM and SIGINT call the registered callbacks.

A signal handler interrupts the main thread anywhere, also while it holds a lock. So the handler only starts a thread,
and the callbacks run there.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import ClassVar

from redrive.blocking.loops.heartbeat import callback_name
from redrive.core.validation import check_function
from redrive.errors import InvalidParameterError

Callback = Callable[[], object]
logger = logging.getLogger("redrive.loops")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ShutdownCoordinator:
    """One per process: `install` makes it, `get` returns it, `reset` restores the signal handlers.

    Each callback is called once: on shutdown, or at once if it is registered after that. Never in a signal handler and
    never under a lock; an error is logged, and the other callbacks are called. Further signals do nothing.
    """

    _installed: ClassVar[ShutdownCoordinator | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []
        self._triggered = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self.pid = os.getpid()

    @classmethod
    def install(cls, signals: Iterable[int] = SIGNALS) -> ShutdownCoordinator:
        """Handle these signals, in the main thread only. A second call returns the first coordinator."""
        with cls._guard:
            if cls._installed is not None and cls._installed.pid == os.getpid():
                return cls._installed
            if threading.current_thread() is not threading.main_thread():
                hint = "install it there, or run the group with install_signals=False"
                raise InvalidParameterError("signals can be handled in the main thread only", hint=hint)
            made = cls()
            for number in signals:
                made._before[number] = signal.signal(number, made._handle)
            cls._installed = made
            return made

    @classmethod
    def get(cls) -> ShutdownCoordinator | None:
        """The installed coordinator, or None."""
        return cls._installed

    @classmethod
    def reset(cls) -> None:
        """Restore the signal handlers that were there before `install`."""
        with cls._guard:
            made, cls._installed = cls._installed, None
        if made is not None:
            made.restore()

    def register(self, callback: Callback) -> None:
        check_function(callback, field="callback", hint="give a function without parameters")
        with self._lock:
            if not self._triggered:
                self._callbacks.append(callback)
                return
        _call(callback)

    def unregister(self, callback: Callback) -> None:
        """An unknown callback is ignored."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def trigger(self) -> None:
        """As a signal does, but in this thread: returns when every callback has returned."""
        with self._lock:
            self._triggered = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    @property
    def triggered(self) -> bool:
        return self._triggered

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self.pid:
            # A forked child inherits the handler: it does what the signal did before.
            signal.signal(number, _handler(self._before.get(number)))
            os.kill(os.getpid(), number)
            return
        # Not threading.Thread: starting one takes a lock, which the interrupted code may hold.
        _thread.start_new_thread(self._shut_down, (number,))

    def _shut_down(self, number: int) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self.trigger()

    def restore(self) -> None:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self.pid:
            return
        for number, before in self._before.items():
            # A handler that was set after ours stays.
            if signal.getsignal(number) == self._handle:
                signal.signal(number, _handler(before))


def _handler(
    before: Callable[[int, FrameType | None], object] | int | None,
) -> Callable[[int, FrameType | None], object] | int:
    """None: it was not set by Python, and cannot be set again."""
    return signal.SIG_DFL if before is None else before


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a shutdown callback failed: %s", callback_name(callback))
