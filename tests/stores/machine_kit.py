"""The state machine on the stores of this repository: a fresh store for each of its examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.machine import Size, machine_of, run_machine
from redrive.testing.conformance.stage import MakeStore
from tests.support.stores import fresh_store

Fresh = Callable[[Path], AbstractContextManager[str]]


@contextmanager
def examples(fresh: Fresh) -> Iterator[MakeStore]:
    """One store for each folder that the machine makes, given back when its folder is gone."""
    urls: dict[Path, tuple[str, ExitStack]] = {}

    def make(folder: Path, clock: FakeClock) -> Store:
        for gone in [known for known in urls if not known.exists()]:
            urls.pop(gone)[1].close()
        if folder not in urls:
            stack = ExitStack()
            urls[folder] = (stack.enter_context(fresh(folder)), stack)
        return store_from_url(urls[folder][0], clock=clock)

    try:
        yield make
    finally:
        for _, stack in urls.values():
            stack.close()


def run_on(kind: str, size: Literal["smoke"] | Size) -> None:
    with examples(lambda folder: fresh_store(kind, folder)) as make:
        run_machine(machine_of(make, durable=kind != "memory"), size)
