"""Signals without signals: a test calls what the signal would call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

import pytest


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
        """From any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._added[number])


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    return Signals(monkeypatch)
