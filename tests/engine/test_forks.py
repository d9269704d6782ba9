"""Where the user's code ends, a process that it forked ends too. With real forks: proofs/engine/test_forks.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from redrive import Dead
from redrive.core.item import Item
from redrive.engine import forks
from tests.support.lab import Lab


class Gone(BaseException):
    """Instead of the end of this process."""


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (ValueError("in the child"), 1), (SystemExit(3), 3), (KeyboardInterrupt(), 1)]
)
def test_a_child_ends_as_a_program_would(
    error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(code: int) -> None:
        raise Gone(code)

    def end() -> None:
        child = os.getpid() + 1
        with forks.parent_only():
            monkeypatch.setattr(os, "getpid", lambda: child)
            if error is not None:
                raise error

    monkeypatch.setattr(os, "_exit", gone)
    with pytest.raises(Gone, match=str(code)):
        end()
    assert ("in the child" in capsys.readouterr().err) is isinstance(error, ValueError)


def test_the_parent_goes_on() -> None:
    with pytest.raises(ValueError, match="its own"), forks.parent_only():
        raise ValueError("its own")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_handlers_and_work_on_letters_are_for_the_parent_only(
    memory_lab: Lab, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    ended: list[BaseException | None] = []
    monkeypatch.setattr(forks, "leave", ended.append)
    app = await memory_lab.app()

    def forked(item: Item) -> None:
        child = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: child)

    async def async_forked(item: Item) -> None:
        forked(item)

    fork: Callable[[Item], Any] = forked if sync else async_forked
    app.handler("q")(fork)

    @app.handler("failing")
    async def fail() -> None:
        raise Dead("broken")

    await app.enqueue("q")
    letter = await app.enqueue("failing")
    await memory_lab.drain(app)
    assert ended == [None]
    await memory_lab.drive(app.letters.work([letter], fork, reason="mended"))
    assert ended == [None, None]
