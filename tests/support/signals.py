"""Signals without signals: a test calls what the signal would call."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from redrive.blocking._call import in_event_loop


class Signals:
    """Handlers that were added to the running loop are kept here instead, and are called in that loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._added: dict[int, Callable[[], object]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        added = self

        def add(loop: asyncio.AbstractEventLoop, number: int, callback: Callable[..., object], *args: object) -> None:
            added._loop = loop
            added._added[number] = partial(callback, *args)

        def remove(_: asyncio.AbstractEventLoop, number: int) -> bool:
            return added._added.pop(number, None) is not None

        patch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", add)
        patch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", remove)

    def send(self, number: signal.Signals) -> None:
        """From any thread; returns when it was handled. In the loop itself it is handled with the next turn."""
        assert self._loop is not None
        handler, handled = self._added[number], threading.Event()

        def handle() -> None:
            handler()
            handled.set()

        self._loop.call_soon_threadsafe(handle)
        assert in_event_loop() or handled.wait(60), "the loop does not turn"


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    return Signals(monkeypatch)
