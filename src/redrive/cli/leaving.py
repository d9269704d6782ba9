"""How the process ends. A handler's thread that hangs cannot be killed, and Python would wait for it for ever.

Nothing is imported in order to end: what nobody has imported has left nothing behind.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn, TextIO

from redrive.cli.output import say

PATIENCE = 1.0
"""Seconds for threads that were told to end and are only slow to hear it."""


def leave(code: int) -> NoReturn:
    """End normally, or at once if threads linger that nobody can stop."""
    deadline = time.monotonic() + PATIENCE
    for thread in _lingering():
        thread.join(max(0.0, deadline - time.monotonic()))
    left = _lingering()
    if left:
        names = ", ".join(thread.name for thread in left)
        say(f"redrive: left behind {len(left)} thread{'s' * (len(left) > 1)} that would not end: {names}")
        leave_now(code)
    if not _flushed():
        leave_now(code)  # Python would try once more, and end with a code of its own
    sys.exit(code)


def leave_now(code: int) -> NoReturn:
    """Without waiting for anything. What was accepted is durable; leases expire by themselves."""
    if (logging := sys.modules.get("logging")) is not None:
        logging.shutdown()
    _flushed()
    os._exit(code)


def _flushed() -> bool:
    """False if nobody reads it any more, or there is no room for it."""
    streams: list[TextIO | None] = [sys.stdout, sys.stderr]
    arrived = True
    for stream in streams:
        if stream is None:
            continue  # closed before Python began
        try:
            stream.flush()
        except (OSError, ValueError):
            arrived = False
    return arrived


def _lingering() -> list[threading.Thread]:
    """Threads that Python would wait for, and those of handlers: it would not, but the operator should know."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    handlers = sys.modules.get("redrive.engine.threads")
    return [t for t in others if not t.daemon or (handlers is not None and t.name.startswith(handlers.NAME))]
