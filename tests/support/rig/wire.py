"""Crash points on the way to a server: every request of a client, wherever it comes from, with no hook in the store.

The client goes through a link, which counts what it sends. At point 2k - 1 the k-th request never arrives, for its
sender is killed; at point 2k it is carried out, its sender is killed, and the answer is never read.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading

from redrive.stores.url import store_from_url
from tests.support.links.conditions import CutReply, CutRequest
from tests.support.links.link import Link
from tests.support.rig import records as r
from tests.support.rig.fork import Child
from tests.support.rig.log import Log, now_ns
from tests.support.rig.scenario import Place, play

ANSWERED = 2.0
"""Seconds for a server to answer, before it is taken for one that has nothing to say, as to a goodbye."""
LOOK = 0.005


class Executioner:
    """Listens to what a process sends, as the mark of a condition, and kills it at its point."""

    def __init__(self, pid: int, log: Log, chosen: int | None) -> None:
        self.sent = 0
        self._pid = pid
        self._log = log
        self._count = itertools.count(1)
        self._request = None if chosen is None else (chosen + 1) // 2
        self._after = chosen is not None and chosen % 2 == 0
        self._stopped = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self, link: Link) -> None:
        self._link = link
        link.set(CutReply(self._is_chosen, times=1) if self._after else CutRequest(self._is_chosen, times=1))
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._stopped.set()
        self._thread.join()

    def _is_chosen(self, _: bytes) -> bool:
        self.sent = next(self._count)
        if self.sent != self._request:
            return False
        if self._after:
            # It stands still from here on: nothing it could see or do counts any more.
            self._send(signal.SIGSTOP)
            self._stopped.set()
        else:
            self._kill()
        return True

    def _watch(self) -> None:
        """Kill when the answer has come and was held back."""
        self._stopped.wait()
        pause = threading.Event()
        for _ in range(int(ANSWERED / LOOK)):
            if self._over.is_set() or self._link.counts.cuts:
                break
            pause.wait(LOOK)
        if not self._over.is_set():
            self._kill()

    def _kill(self) -> None:
        self._log(r.Struck(self._pid, "kill", now_ns()))
        self._send(signal.SIGKILL)

    def _send(self, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # its last word, and it is gone by itself
            os.kill(self._pid, what)


def over_the_wire(place: Place, items: int, chosen: int | None) -> tuple[int, object]:
    """The scenario's exit status, and how many points there were."""
    ready, told = os.pipe()
    child = Child(lambda: asyncio.run(play(place, store_from_url(_told(ready)), items)))
    os.close(ready)
    # The link has a thread, so it may only come after the fork.
    with Link.to(place.url) as link:
        executioner = Executioner(child.pid, Log(place.logs / "nemesis.log"), chosen)
        executioner.start(link)
        os.write(told, link.through(place.url).encode())
        os.close(told)
        try:
            status, _ = child.wait()
        finally:
            executioner.end()
    return status, 2 * executioner.sent


def _told(pipe: int) -> str:
    return os.read(pipe, 4096).decode()
