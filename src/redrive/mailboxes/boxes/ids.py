"""Ids of messages, made many at a time: each trip to the system for luck lets other threads in, and they are many."""

from __future__ import annotations

import os
from collections import deque

from redrive.engine.ids import new_ids

_MANY = 64

_made: deque[str] = deque()


def fresh_id() -> str:
    """From any thread. Unique, as those that are made one by one."""
    try:
        return _made.popleft()
    except IndexError:
        first, *rest = new_ids(_MANY)
        _made.extend(rest)
        return first


# What the parent has made is the parent's: a child that used it too would send messages under used ids.
os.register_at_fork(after_in_child=_made.clear)
