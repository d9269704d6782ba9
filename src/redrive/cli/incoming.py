"""Modules come in and stay: to look for garbage among them meanwhile would take a twentieth of a command's time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_alone = False


def alone() -> None:
    """The process is a command's, and all that there is in it is needed to its end."""
    global _alone  # noqa: PLW0603 - as the process is one
    _alone = True


@contextmanager
def incoming() -> Iterator[None]:
    """What comes in here is never looked through again. In a process of somebody else nothing changes."""
    if not _alone:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
