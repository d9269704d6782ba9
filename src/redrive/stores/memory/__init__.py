"""The store for tests and for the model: everything in this process, nothing survives it."""

from redrive.stores.memory._store import MemoryStore

__all__ = ["MemoryStore"]
