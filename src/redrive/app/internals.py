"""Internal accessors of an app, for the doors: its store, its clock and the hook on its worker's writes.

Doors take from here what they need of the stores, and import nothing else of them but URLs and clocks.
"""

from __future__ import annotations

from redrive.app import Redrive
from redrive.engine.registry import Registry
from redrive.engine.write_hook import WriteHook
from redrive.stores.aside import in_thread
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.checks import taken
from redrive.stores.clock import Clock

__all__ = ["PAGE_LIMIT", "Store", "clock_of", "in_thread", "registry_of", "set_write_hook", "store_of", "taken"]

# ruff: noqa: SLF001 - the only module outside the app's own classes that reads its attributes


def store_of(app: Redrive) -> Store:
    """The store of the app; open while the app is."""
    return app._store


def registry_of(app: Redrive) -> Registry:
    """The handlers and policies that the app has declared."""
    return app._registry


def clock_of(app: Redrive) -> Clock:
    """The clock that the app was made with."""
    return app._clock


def set_write_hook(app: Redrive, hook: WriteHook) -> None:
    """Let `hook` write just before the app's worker does. To be called before `run`."""
    app._write_hook = hook
