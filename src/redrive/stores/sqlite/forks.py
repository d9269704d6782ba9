"""A forked child must never use, and never close, its parent's connections.

Closing one would run SQLite's clean-up (a checkpoint, the removal of the log) on the strength of locks that only the
parent has. So what was open at the time of a fork is left alone in the child: it is not freed even when the child ends.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TypeVar

from redrive.stores.sqlite.binding import Connection

C = TypeVar("C", bound=Connection)

_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def leave_to_parent(connection: C) -> C:
    """From now on a child that is forked will not free the connection."""
    _open.add(connection)
    return connection


def _keep_for_ever() -> None:
    for connection in list(_open):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()


os.register_at_fork(after_in_child=_keep_for_ever)
