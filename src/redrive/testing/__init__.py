"""The kit for testing code that uses redrive: time under control, stores that fail on demand, and the store for tests.

`redrive.testing.conformance` is the suite that every engine passes; it needs pytest and is imported by name only.
"""

from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import Call, Fault, FaultyStore, Hold, Point, SimulatedCrash
from redrive.testing.proxy import EncodingProxy

__all__ = [
    "Call",
    "EncodingProxy",
    "FakeClock",
    "Fault",
    "FaultyStore",
    "Hold",
    "MemoryStore",
    "Point",
    "SimulatedCrash",
]
