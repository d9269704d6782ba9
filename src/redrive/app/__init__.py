"""The application object: one store, its handlers, the client, the office and the workers, put together."""

from __future__ import annotations

from redrive.app._declare import Declaring, F
from redrive.app._steer import Steering
from redrive.app._work import Working

__all__ = ["F", "Redrive"]


class Redrive(Declaring, Working, Steering):
    """A durable work queue on one store.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. Left out: settings say which, how large a payload
    may be and who acts. `traceback=False` keeps frames out of evidence.
    """
