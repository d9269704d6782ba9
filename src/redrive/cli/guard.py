"""Ends the process when a handler blocks the event loop for good: such a loop hears no signal and obeys no stop."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
import time
from contextlib import suppress

from redrive.cli.exits import Exit
from redrive.core.item import Millis

PAUSE = 0.1
LOOKS = 14
"""For a sign of life; the process shall end within two seconds after the grace. Counted, for a process that was itself
suspended in the meantime has not waited."""
SAID = b"redrive: a handler blocks the event loop; leaving, its leases will expire by themselves\n"


class Guard:
    """Does nothing before the first signal. After the grace, or a second signal, the loop has to keep turning."""

    def __init__(self, loop: asyncio.AbstractEventLoop, grace: Millis) -> None:
        self._loop = loop
        self._grace = grace
        # The one queue that may be used in a signal handler.
        self._heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="redrive-guard", daemon=True).start()

    def hear(self, number: signal.Signals) -> None:
        """Beside the loop's own handling, which is set up before and stays as it is."""
        signal.signal(number, lambda heard, _: self._heard.put(heard))
        signal.siginterrupt(number, False)

    def _watch(self) -> None:
        self._heard.get()
        with suppress(queue.Empty):
            self._heard.get(timeout=min(self._grace / 1000, threading.TIMEOUT_MAX))
        # RuntimeError: the loop is closed, and the process on its way out.
        with suppress(RuntimeError):
            while self._turns():
                time.sleep(PAUSE)
            _leave()

    def _turns(self) -> bool:
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        return any(turned.wait(PAUSE) for _ in range(LOOKS))


def _leave() -> None:
    # In a thread: whoever blocks the loop may be blocked itself by a pipe that nobody reads.
    saying = threading.Thread(target=os.write, args=(2, SAID), daemon=True)
    saying.start()
    saying.join(PAUSE)
    os._exit(Exit.FAILED)
