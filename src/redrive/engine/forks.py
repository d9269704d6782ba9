"""A child that the user's code forks, and that comes to the end of that code: what its parent has in hand is not its.

It has a copy of the loop, of what is worked on and of the way to the store. If it went on, it would end what the parent
still works on, and then take more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from redrive.engine.threads import leave


@contextmanager
def parent_only() -> Iterator[None]:
    """What is called in the block may fork: a child ends where the block does, as a program would."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            leave(error)
        raise
    if os.getpid() != process:
        leave(None)
