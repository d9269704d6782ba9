"""The same API for programs without an event loop: `from redrive.blocking import Redrive`, and no `await`.

Every name of `redrive` is here too, so that one import line is enough. Only `Redrive` is another class; its calls run
in a loop in a thread of its own.
"""

from redrive._version import __version__
from redrive.blocking._facade import Redrive
from redrive.core.acts import Amended
from redrive.core.backoff import constant, custom, exponential, immediate, linear, never
from redrive.core.classify import dead_on, never_dead, rate_limited, retry_on
from redrive.core.item import History, Item
from redrive.core.meters import Rate
from redrive.core.policy import Policy
from redrive.core.verbs import Page
from redrive.engine.runner import cancel_requested, keep_output
from redrive.engine.signals import Cancel, Dead, Retry, Snooze
from redrive.office.in_place import Halt
from redrive.stores.keyring import Keyring

__all__ = [
    "Amended",
    "Cancel",
    "Dead",
    "Halt",
    "History",
    "Item",
    "Keyring",
    "Page",
    "Policy",
    "Rate",
    "Redrive",
    "Retry",
    "Snooze",
    "__version__",
    "cancel_requested",
    "constant",
    "custom",
    "dead_on",
    "exponential",
    "immediate",
    "keep_output",
    "linear",
    "never",
    "never_dead",
    "rate_limited",
    "retry_on",
]
