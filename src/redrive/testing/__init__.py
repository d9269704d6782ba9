"""The kit for testing code that uses redrive: your app in a sandbox, time under control, stores that fail on demand.

`redrive.testing.blocking` is the kit for tests without an event loop. `redrive.testing.conformance` is the suite that
every engine passes; it needs pytest and is imported by name only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.stores.memory import MemoryStore
    from redrive.testing._drain import Drained
    from redrive.testing._inline import inline
    from redrive.testing._sandbox import sandbox
    from redrive.testing.clock import FakeClock
    from redrive.testing.faults import Call, Fault, FaultyStore, Hold, Point, SimulatedCrash
    from redrive.testing.kit import assert_dead, assert_done, assert_enqueued, assert_not_enqueued, drain
    from redrive.testing.proxy import EncodingProxy
else:
    from redrive._late import names_of

    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.stores.memory": ("MemoryStore",),
            "redrive.testing._drain": ("Drained",),
            "redrive.testing._inline": ("inline",),
            "redrive.testing._sandbox": ("sandbox",),
            "redrive.testing.clock": ("FakeClock",),
            "redrive.testing.faults": ("Call", "Fault", "FaultyStore", "Hold", "Point", "SimulatedCrash"),
            "redrive.testing.kit": ("assert_dead", "assert_done", "assert_enqueued", "assert_not_enqueued", "drain"),
            "redrive.testing.proxy": ("EncodingProxy",),
        },
    )


__all__ = [
    "Call",
    "Drained",
    "EncodingProxy",
    "FakeClock",
    "Fault",
    "FaultyStore",
    "Hold",
    "MemoryStore",
    "Point",
    "SimulatedCrash",
    "assert_dead",
    "assert_done",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "inline",
    "sandbox",
]
