"""What the tests of the facade share: threads that pass on what they raise, and workers in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from redrive.blocking import Redrive
from redrive.blocking._process import NAME
from tests.support.cli import PATIENCE

T = TypeVar("T")


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def in_thread(call: Callable[[], T]) -> Future[T]:
    """In a thread of its own; the future raises what it raised, or that it takes too long."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def done(future: Future[T]) -> T:
    return future.result(PATIENCE)


@contextmanager
def working(app: Redrive, grace: str = "30s") -> Iterator[Future[None]]:
    """A worker in another thread."""
    started = threading.Event()
    unsubscribe = app.events.subscribe(lambda _: started.set())
    running = in_thread(lambda: app.run(grace=grace))
    assert started.wait(PATIENCE)
    unsubscribe()
    try:
        yield running
    finally:
        app.stop(grace=0)
        done(running)
