"""`redrive worker run` in the process of the test, told to stop without a signal."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol

import pytest

from redrive import Redrive, blocking
from tests.support.cli import PATIENCE, Told, here
from tests.support.signals import Signals

LOGGER = "redrive.cli"


class RunWorker(Protocol):
    def __call__(self, app: Redrive | blocking.Redrive, *args: str) -> Told: ...


class _Heard(logging.Handler):
    def __init__(self, text: str, call: Callable[[], object]) -> None:
        super().__init__()
        self._text = text
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._call()


def when_logged(text: str, call: Callable[[], object]) -> None:
    """Call it when the worker logs the text; from inside a handler, as logging is set up anew for each run."""
    logging.getLogger(LOGGER).addHandler(_Heard(text, call))


@contextmanager
def own_logging() -> Iterator[None]:
    """As in a process that has set up nothing: all goes to what is stderr now, and nothing of it stays."""
    loggers = [logging.getLogger(), logging.getLogger("redrive"), logging.getLogger(LOGGER)]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers = []
    try:
        yield
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


class Unguarded:
    """Instead of the thread that ends a process whose loop stands still."""

    def __init__(self, *args: object) -> None: ...

    def hear(self, number: int) -> None: ...


@pytest.fixture
def run_worker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> Iterator[RunWorker]:
    """Runs an app of the test as `tasks:app`. Its handlers send signals by `signals`."""
    assert signals is not None
    monkeypatch.setattr("redrive.cli.worker_session.Guard", Unguarded)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = ModuleType("tasks")
    monkeypatch.setitem(sys.modules, "tasks", module)
    threads = set(threading.enumerate())

    def run(app: Redrive | blocking.Redrive, *args: str) -> Told:
        vars(module)["app"] = app
        with own_logging():
            return here(capsys, "worker", "run", "tasks:app", *args)

    yield run
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
