"""Internal accessors of an app, for the doors, the command line and the test kit: its parts, store and clock.

Doors take from here what they need of the stores, and import nothing else of them but URLs and clocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redrive.app import Redrive
from redrive.app.lifecycle import AppParts
from redrive.core.item import Item, Millis
from redrive.core.policy import Policy
from redrive.engine.registry import Handler, Signature
from redrive.engine.write_hook import WriteHook
from redrive.stores.aside import in_thread
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.checks import taken
from redrive.stores.clock import Clock

__all__ = [
    "PAGE_LIMIT",
    "Store",
    "clock_of",
    "handler_for",
    "in_thread",
    "parts_of",
    "replace_parts",
    "set_write_hook",
    "store_of",
    "taken",
]


def parts_of(app: Redrive) -> AppParts:
    return app._parts  # noqa: SLF001 - read here only


def replace_parts(app: Redrive, parts: AppParts) -> None:
    app._parts = parts  # noqa: SLF001 - written here only


def store_of(app: Redrive) -> Store:
    """The store of the app; open while the app is."""
    return parts_of(app).store


def clock_of(app: Redrive) -> Clock:
    """The clock that the app was made with."""
    return parts_of(app).clock


def set_write_hook(app: Redrive, hook: WriteHook) -> None:
    """Let `hook` write just before the app's worker does. To be called before `run`."""
    parts_of(app).write_hook = hook


def handler_for(
    queue: str, function: Callable[[Item], Awaitable[None]], *, policy: Policy, lease: Millis, concurrency: int
) -> Handler:
    """A handler for a worker that a door runs itself (`AppParts.work`), beside those that are registered."""
    return Handler(queue, function, policy, lease, None, concurrency, is_async=True, signature=Signature(function))
