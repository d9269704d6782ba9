"""Servers that the documents name. A test that runs a page gives it real ones, each with nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

SHOWN = {
    "postgresql://shop@10.0.0.5/shop": "postgres",
    "redis://10.0.0.6:6379/0": "redis",
    "http://10.0.0.7:8000": "broker",
    "http://10.0.0.8:8000": "silence",
}
"""The one address of each kind that a page may use. Its numbers count for nothing when outputs are compared."""
CONNINFO = "host=10.0.0.5 dbname=shop user=shop"
"""The same PostgreSQL as its own tools write it."""


class Addresses:
    """Of one page; a server is started when the page first names it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._real: dict[str, str] = {}

    def real(self, text: str) -> str:
        for shown, kind in SHOWN.items():
            if shown in text:
                if shown not in self._real:
                    self._real[shown] = self._stack.enter_context(_MAKE[kind]())
                # The real one has options already.
                text = text.replace(f"{shown}?", f"{self._real[shown]}&").replace(shown, self._real[shown])
        if CONNINFO in text:
            # A driver of the reader's own knows nothing of our options.
            text = text.replace(CONNINFO, self.real("postgresql://shop@10.0.0.5/shop").partition("?")[0])
        return text


def _postgres() -> AbstractContextManager[str]:
    from tests.support.servers import schemas

    return schemas.schemas().missing()


def _redis() -> AbstractContextManager[str]:
    from tests.support.servers import namespaces

    return namespaces.fresh()


@contextmanager
def _broker() -> Iterator[str]:
    """Takes every receipt."""
    from tests.support.broker import Broker

    with Broker() as broker:
        yield broker.url


@contextmanager
def _silence() -> Iterator[str]:
    """A broker that is down: its port is closed, and stays so."""
    from tests.support.broker import Broker

    with Broker() as broker:
        broker.down()
        yield broker.url


_MAKE: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "postgres": _postgres,
    "redis": _redis,
    "broker": _broker,
    "silence": _silence,
}
