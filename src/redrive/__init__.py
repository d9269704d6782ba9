"""redrive: a durable work queue in which failure is a first-class citizen. No failed work is ever lost."""

from redrive._version import __version__
from redrive.app import Redrive
from redrive.core.backoff import constant, custom, exponential, immediate, linear, never
from redrive.core.classify import dead_on, never_dead, retry_on
from redrive.core.item import History, Item
from redrive.core.policy import Policy
from redrive.core.verbs import Amended, Page
from redrive.engine.signals import Dead, Retry, Snooze

__all__ = [
    "Amended",
    "Dead",
    "History",
    "Item",
    "Page",
    "Policy",
    "Redrive",
    "Retry",
    "Snooze",
    "__version__",
    "constant",
    "custom",
    "dead_on",
    "exponential",
    "immediate",
    "linear",
    "never",
    "never_dead",
    "retry_on",
]
