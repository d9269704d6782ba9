"""`Redrive` without `await`: each method is one call into the loop of the async app behind it."""

from __future__ import annotations

from redrive import app as asynchronous
from redrive.blocking._declare import Declaring
from redrive.blocking._steer import Steering
from redrive.blocking._work import Working


class Redrive(Declaring, Working, Steering):
    """A durable work queue on one store, for programs without an event loop.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. `traceback=False` keeps frames out of evidence.
    All threads of a process may share it, and a forked child may go on with it.
    """


def behind(app: Redrive) -> asynchronous.Redrive:
    """The async app that does the work, for those who have a loop of their own to run it in."""
    return app._app  # noqa: SLF001 - read here only
