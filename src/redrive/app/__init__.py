"""The application object: one store, its handlers, the client, the office and the workers, put together."""

from __future__ import annotations

from redrive.app.operations import Operating
from redrive.app.registration import F, Registering
from redrive.app.work import Working

__all__ = ["F", "Redrive"]


class Redrive(Registering, Working, Operating):
    """A durable work queue on one store.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. Left out: settings say which, how large a payload
    may be and who acts. `traceback=False` keeps frames out of evidence. `release` is the version of your program: on
    items that it enqueues, on its attempts and on the heartbeats of its workers.
    """
