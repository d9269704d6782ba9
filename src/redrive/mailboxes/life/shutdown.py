"""SIGTERM and SIGINT, for whoever wants to end in order.

A signal's handler interrupts the main thread anywhere, also while that holds a lock. So ours only starts a thread,
and everything else happens there.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import ClassVar

from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.logs import logger, name_of

Callback = Callable[[], object]
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ShutdownCoordinator:
    """One in a process: `install` makes it, `get` finds it, `reset` gives the signals back.

    Each callback is called once: when it is triggered, or as it is registered if that is past. Never in a signal's
    handler, never under a lock; its errors are logged and keep the others from nothing. Further signals do nothing.
    """

    _installed: ClassVar[ShutdownCoordinator | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []
        self._triggered = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._process = os.getpid()

    @classmethod
    def install(cls, signals: Iterable[int] = SIGNALS) -> ShutdownCoordinator:
        """Take over these signals; if that was done before, nothing changes. Only the main thread may."""
        with cls._guard:
            if cls._installed is not None and cls._installed._process == os.getpid():
                return cls._installed
            if threading.current_thread() is not threading.main_thread():
                said = "signals can be taken over only in the main thread"
                raise InvalidParameterError(said, hint="install it there, or run the group with install_signals=False")
            made = cls()
            for number in signals:
                made._before[number] = signal.signal(number, made._heard)
            cls._installed = made
            return made

    @classmethod
    def get(cls) -> ShutdownCoordinator | None:
        """The one that is installed."""
        return cls._installed

    @classmethod
    def reset(cls) -> None:
        """Forget it. The signals do what they did before it was installed."""
        with cls._guard:
            made, cls._installed = cls._installed, None
        if made is not None:
            made._give_back()

    def register(self, callback: Callback) -> None:
        limits.function(callback, field="callback", hint="give one without parameters")
        with self._lock:
            if not self._triggered:
                self._callbacks.append(callback)
                return
        _call(callback)

    def unregister(self, callback: Callback) -> None:
        """One that is not there is no error."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def trigger(self) -> None:
        """As a signal would, but in this thread: returns when every callback has."""
        with self._lock:
            self._triggered = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)

    @property
    def triggered(self) -> bool:
        return self._triggered

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A forked child inherits the handler, but this is not about it: it does what it would have done.
            signal.signal(number, _handler(self._before.get(number)))
            os.kill(os.getpid(), number)
            return
        # Not threading.Thread: starting that takes a lock, which the interrupted code may hold.
        _thread.start_new_thread(self._signalled, (number,))

    def _signalled(self, number: int) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self.trigger()

    def _give_back(self) -> None:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self._process:
            return
        for number, before in self._before.items():
            # Whoever came after us keeps what is theirs.
            if signal.getsignal(number) == self._heard:
                signal.signal(number, _handler(before))


def _handler(
    before: Callable[[int, FrameType | None], object] | int | None,
) -> Callable[[int, FrameType | None], object] | int:
    """None: it was set by something else than Python, and cannot be set again."""
    return signal.SIG_DFL if before is None else before


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the others must stop all the same
        logger.exception("a callback of the shutdown failed, the others are called: %s", name_of(callback))
