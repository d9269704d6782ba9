"""Mailboxes beside the same verbs of the store through the same loop thread: what it costs to have messages.

Every figure is taken from a thread without an event loop, as users of mailboxes have it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.lab import Lab, Reading, check
from bench.load import PAYLOAD, QUEUE
from redrive.blocking.loop_thread import LoopThreadHost
from redrive.core import codec
from redrive.core.decide import ToDone
from redrive.core.item import NewItem
from redrive.core.verbs import LeaseRequest, Settlement, Want
from redrive.engine.ids import new_id
from redrive.mailboxes import open_mailbox
from redrive.stores.url import store_from_url

CYCLES = 40
BATCH = 10
THREADS = 16
WAKES = 60
TTL = 60_000
FAR = 1_000_000_000


def cycle(lab: Lab) -> list[Reading]:
    """Ten are sent one by one, received at once, and acknowledged one by one."""
    bare = _bare(lab.engine.empty("mailbox-bare"))
    ours = _ours(lab.engine.empty("mailbox-ours"))
    against = "the same verbs through the loop thread"
    return [Reading("mailbox: send, receive, acknowledge", ours, "/s", against, bare, at_least=0.6)]


def _ours(url: str) -> float:
    with open_mailbox(QUEUE, url) as mailbox:

        def once() -> None:
            for _ in range(BATCH):
                mailbox.send(PAYLOAD)
            messages = mailbox.receive(max_messages=BATCH)
            check(len(messages), BATCH, "received")
            for message in messages:
                assert message.body == PAYLOAD
                message.acknowledge()

        return _rate(once)


def _bare(url: str) -> float:
    store = store_from_url(url)
    host = LoopThreadHost(store, what="{name}", instead="")
    host.open(store.open)
    worker = "bench"

    def once() -> None:
        for _ in range(BATCH):
            host.call(store.put, [NewItem(new_id(), QUEUE, codec.dump_payload(PAYLOAD, limit=FAR))])
        request = LeaseRequest(worker, (Want(QUEUE, BATCH, TTL, FAR),), new_id())
        items = host.call(store.lease, request).items
        check(len(items), BATCH, "leased")
        for item in items:
            assert codec.load_payload(item.payload) == PAYLOAD
            host.call(store.settle, [Settlement(item.id, item.deliveries, ToDone())])

    try:
        return _rate(once)
    finally:
        host.close(store.close)


def _rate(once: Callable[[], None]) -> float:
    """Messages a second."""
    once()  # what is done once in a life is not what is measured
    start = time.perf_counter()
    for _ in range(CYCLES):
        once()
    return CYCLES * BATCH / (time.perf_counter() - start)


def threads(lab: Lab) -> list[Reading]:
    one, many = (_by_threads(lab.engine.empty("mailbox-threads"), count) for count in (1, THREADS))
    at_least = 3.0 if lab.engine.name == "sqlite" else None
    return [Reading(f"mailbox, {THREADS} threads", many, "/s", "1 thread", one, at_least=at_least)]


def _by_threads(url: str, count: int) -> float:
    """Each sends, receives and acknowledges on its own; whose message it is does not matter."""
    with open_mailbox(QUEUE, url) as mailbox:

        def work() -> None:
            for _ in range(CYCLES):
                mailbox.send(PAYLOAD)
                (message,) = mailbox.receive(wait_time_seconds=20)
                message.acknowledge()

        mailbox.approximate_count()
        crew = [threading.Thread(target=work) for _ in range(count)]
        start = time.perf_counter()
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        took = time.perf_counter() - start
        check(mailbox.approximate_count(), 0, "left")
    return count * CYCLES / took


def wake(lab: Lab) -> list[Reading]:
    """From before the send to the message in the hand of a receiver that waits for it."""
    naps: list[float] = []
    sent: list[float] = []
    ready = threading.Semaphore(0)
    with open_mailbox(QUEUE, lab.engine.empty("mailbox-wake")) as mailbox:

        def receive() -> None:
            for _ in range(WAKES):
                ready.release()
                messages: Any = mailbox.receive(wait_time_seconds=20)
                naps.append(time.perf_counter() - sent[-1])
                messages[0].acknowledge()

        receiver = threading.Thread(target=receive)
        receiver.start()
        for _ in range(WAKES):
            ready.acquire()
            time.sleep(0.02)  # so that it waits
            sent.append(time.perf_counter())
            mailbox.send(PAYLOAD)
        receiver.join()
    check(len(naps), WAKES, "woken")
    return [Reading("mailbox, long poll wakes", statistics.median(naps) * 1000, "ms, median", at_most=10.0)]
