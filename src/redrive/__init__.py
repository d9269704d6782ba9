"""redrive: a durable work queue in which failure is a first-class citizen. No failed work is ever lost."""

from typing import TYPE_CHECKING

from redrive._version import __version__

if TYPE_CHECKING:
    from redrive.app import Redrive
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
else:
    from redrive._late import names_of

    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.app": ("Redrive",),
            "redrive.core.acts": ("Amended",),
            "redrive.core.backoff": ("constant", "custom", "exponential", "immediate", "linear", "never"),
            "redrive.core.classify": ("dead_on", "never_dead", "rate_limited", "retry_on"),
            "redrive.core.item": ("History", "Item"),
            "redrive.core.meters": ("Rate",),
            "redrive.core.policy": ("Policy",),
            "redrive.core.verbs": ("Page",),
            "redrive.engine.runner": ("cancel_requested", "keep_output"),
            "redrive.engine.signals": ("Cancel", "Dead", "Retry", "Snooze"),
            "redrive.office.in_place": ("Halt",),
            "redrive.stores.keyring": ("Keyring",),
            "redrive.blocking": (),
            "redrive.errors": (),
            "redrive.events": (),
            "redrive.testing": (),
        },
    )


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
