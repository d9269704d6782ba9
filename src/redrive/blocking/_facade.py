"""`Redrive` without `await`: each method is one call into the loop of the async app behind it."""

from __future__ import annotations

from redrive import app as asynchronous
from redrive.blocking.operations import Operating
from redrive.blocking.registration import Registering
from redrive.blocking.work import Working


class Redrive(Registering, Working, Operating):
    """A durable work queue on one store, for programs without an event loop.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. `traceback=False` keeps frames out of evidence.
    All threads of a process may share it, and a forked child may go on with it.
    """


def behind(app: Redrive) -> asynchronous.Redrive:
    """The async app that does the work, for those who have a loop of their own to run it in."""
    return app._app  # noqa: SLF001 - read here only
