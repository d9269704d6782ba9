"""What an interruption does to a call and to a worker, and what the end of the process does to what is open.

Real signals and real ends are in proofs/blocking/test_signals.py.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from redrive.blocking import History, Redrive, _process
from redrive.blocking._bridge import sigterm_interrupts
from redrive.core.item import Ending
from redrive.errors import AppClosed
from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from tests.blocking.kit import in_thread, loop_threads
from tests.support.cli import PATIENCE, made_in


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """What Ctrl-C does to the main thread, under another number: pytest has plans for Ctrl-C."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def said() -> Iterator[Callable[[str], threading.Event]]:
    """An event for the next line of ours that has the text."""
    logger, handlers = logging.getLogger("redrive.blocking"), []

    def said(text: str) -> threading.Event:
        heard = threading.Event()

        class Hearing(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if text in record.getMessage():
                    heard.set()

        handlers.append(Hearing())
        logger.addHandler(handlers[-1])
        return heard

    yield said
    for handler in handlers:
        logger.removeHandler(handler)


def history(url: str, item_id: str) -> History:
    with Redrive(url) as app:
        return app.history(item_id)


# -- a call and a worker ---------------------------------------------------------------------------------------------


def test_an_interruption_ends_a_call_and_nothing_else(
    interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_from_url("memory:")
    with Redrive(store) as app:
        app.queue("q")
        app.enqueue("q", id="one")
        get = store.get

        async def get_and_interrupt(item_id: str) -> History:
            monkeypatch.undo()
            interrupt()
            return await get(item_id)

        monkeypatch.setattr(store, "get", get_and_interrupt)
        with pytest.raises(Interrupted):
            app.wait("one")
        assert app.get("one").state == "ready"


def test_one_interruption_drains_a_worker(
    tmp_path: Path, interrupt: Callable[[], None], said: Callable[[str], threading.Event]
) -> None:
    url = made_in(tmp_path)
    stopping = said("stopping; handlers may finish within 1h")
    begun: list[str] = []
    with Redrive(url) as app:

        @app.handler("q", concurrency=1, lease="1h")
        def handle(name: str) -> None:
            begun.append(name)
            interrupt()
            assert stopping.wait(PATIENCE)

        app.enqueue("q", {"name": "one"}, id="one")
        app.enqueue("q", {"name": "two"}, id="two", delay="1ms")
        with pytest.raises(Interrupted):
            app.run(grace="1h")
    assert begun == ["one"]
    assert history(url, "one").item.state == "done"
    assert history(url, "two").item.state == "ready"


def test_a_second_interruption_releases_at_once(
    tmp_path: Path,
    interrupt: Callable[[], None],
    said: Callable[[str], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine has the time that it needs for the last write.
    monkeypatch.setattr("redrive.engine.worker.LAST_WORDS", PATIENCE * 1000)
    url = made_in(tmp_path)
    stopping, at_once, over = said("stopping; handlers"), said("stopping at once"), threading.Event()
    with Redrive(url) as app:

        @app.handler("q", lease="1h")
        def stuck() -> None:
            interrupt()
            assert stopping.wait(PATIENCE)
            interrupt()
            over.wait(PATIENCE)

        app.enqueue("q", id="one")
        with pytest.raises(Interrupted):
            app.run(grace="1h")
    over.set()
    assert at_once.is_set()
    released = history(url, "one")
    assert released.item.state == "ready"
    assert [attempt.ending for attempt in released.attempts] == [Ending.RELEASED]
    assert (released.item.attempt, released.item.crashes, released.item.errors) == (0, 0, 0)


@pytest.fixture
def sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_sigterm_ends_a_worker_in_order_and_is_what_it_was_after_it() -> None:
    app = Redrive("memory:")
    handlers: list[object] = []

    @app.handler("q")
    def handle() -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))

    with app:
        app.enqueue("q")
        app.run(until_idle=True)
    (ours,) = handlers
    assert callable(ours)
    with pytest.raises(SystemExit) as ended:
        ours(signal.SIGTERM, None)
    assert ended.value.code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("sigterm")
def test_a_programs_own_handler_of_sigterm_is_left_alone() -> None:
    def own(_number: int, _frame: FrameType | None) -> None: ...

    signal.signal(signal.SIGTERM, own)
    with sigterm_interrupts():
        assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGTERM) is own


# -- the end of the process ------------------------------------------------------------------------------------------


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What is done at exit, for a process of its own."""
    monkeypatch.setattr(_process, "_process", _process.Process())
    return _process._end  # noqa: SLF001 - nobody else calls it


def test_an_app_left_open_is_closed_at_exit(tmp_path: Path, end: Callable[[], None]) -> None:
    app = Redrive(made_in(tmp_path)).open()
    app.queue("q")
    app.enqueue("q")
    assert (tmp_path / "redrive.db-wal").exists()
    end()
    # The last connection was closed: no log, no socket.
    assert [path.name for path in tmp_path.iterdir()] == ["redrive.db"]
    for thread in loop_threads():
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with pytest.raises(AppClosed, match="the process is ending"):
        Redrive("memory:").open()


def test_a_worker_left_running_is_stopped_at_exit_and_its_items_are_released(
    tmp_path: Path, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.engine.worker.LAST_WORDS", PATIENCE * 1000)
    monkeypatch.setattr(_process, "FAREWELL", PATIENCE)
    url = made_in(tmp_path)
    app = Redrive(url)
    begun, over = threading.Barrier(3), threading.Event()

    @app.handler("plain", lease="1h")
    def plain() -> None:
        begun.wait(PATIENCE)
        over.wait(PATIENCE)

    @app.handler("awaited", lease="1h")
    async def awaited() -> None:
        await asyncio.to_thread(begun.wait, PATIENCE)
        await asyncio.Event().wait()

    app.open()
    app.enqueue("plain", id="plain")
    app.enqueue("awaited", id="awaited")
    running = in_thread(app.run)
    begun.wait(PATIENCE)
    end()
    over.set()
    assert running.exception(PATIENCE) is None
    monkeypatch.undo()
    for item_id in ("plain", "awaited"):
        left = history(url, item_id)
        assert left.item.state == "ready", item_id
        assert [attempt.ending for attempt in left.attempts] == [Ending.RELEASED]


def test_a_store_that_would_not_close_does_not_keep_the_process(
    end: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone(MemoryStore):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(_process, "FAREWELL", 0)
    monkeypatch.setattr(_process, "LAST_CALLS", 0.01)
    Redrive(Gone()).open()
    end()
    assert "apps did not close within" in caplog.text
