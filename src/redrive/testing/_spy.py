"""Keeps the very exceptions that handlers raise. The engine turns them into evidence and lets go of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import replace
from types import TracebackType
from typing import Any

from redrive.core.item import short_id
from redrive.engine.registry import Handler
from redrive.engine.runner import current
from redrive.engine.signals import Cancel, Signal, Snooze
from redrive.errors import ItemFailed


class Spy:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[BaseException, TracebackType | None]] = {}

    def on(self, handler: Handler) -> Handler:
        function = handler.function

        def watched(**arguments: Any) -> Any:
            try:
                value = function(**arguments)
            except BaseException as error:
                self._keep(error)
                raise
            return self._later(value) if inspect.isawaitable(value) else self._returned(value)

        async def watched_async(**arguments: Any) -> Any:
            return await self._later(function(**arguments))

        others = {kind: self.on(other) for kind, other in handler.others.items()}
        return replace(handler, function=watched_async if handler.is_async else watched, others=others)

    async def _later(self, value: Awaitable[Any]) -> Any:
        try:
            return self._returned(await value)
        except BaseException as error:
            self._keep(error)
            raise

    def _returned(self, value: Any) -> Any:
        if isinstance(value, Signal):
            self._keep(value)
        return value

    def _keep(self, error: BaseException) -> None:
        # A CancelledError that came out of a test's own call would pass for the cancellation of the test.
        if not isinstance(error, Snooze | Cancel | asyncio.CancelledError):
            self._seen[current.get().item.id] = error, error.__traceback__

    def error(self, queue: str, item_id: str, text: str, state: str, reason: str) -> BaseException:
        """What the handler raised for this item; where it was not the handler that failed, what the item says."""
        if item_id not in self._seen:
            message = f"item {short_id(item_id)} of queue {queue!r} failed: {text}"
            return ItemFailed(message, item_id=item_id, state=state, reason=reason)
        error, traceback = self._seen.pop(item_id)
        error.__traceback__ = traceback
        note = f"raised by the handler of queue {queue!r} for item {item_id}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error
