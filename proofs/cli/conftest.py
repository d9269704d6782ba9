import signal
from collections.abc import Iterator

import pytest

from tests.support.cli import on_store

__all__ = ["on_store"]


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """A run that was started in the background ignores Ctrl-C, and its children would inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
