"""Several in a program count the same things, and a registry of Prometheus takes a name once: so they share a collector
for each prefix there.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import Metric
from prometheus_client.registry import CollectorRegistry

S = TypeVar("S")


class Joint(ABC, Generic[S]):
    """A collector that tells the numbers of all that have joined it as one."""

    def __init__(self) -> None:
        self._sources: list[S] = []
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return not self._sources

    def join(self, source: S) -> None:
        """May be said twice."""
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def leave(self, source: S) -> None:
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)

    @abstractmethod
    def collect(self) -> Iterable[Metric]: ...


C = TypeVar("C", bound=Joint[Any])


class Registries(Generic[C]):
    """`make` gives the collector of a prefix."""

    def __init__(self, make: Callable[[str], C]) -> None:
        self._make = make
        self._there: WeakKeyDictionary[CollectorRegistry, dict[str, C]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def register(self, source: object, prefix: str, registry: CollectorRegistry) -> C:
        """Together with those that are there under this prefix. ValueError if the names are somebody else's."""
        with self._lock:
            there = self._there.setdefault(registry, {})
            joint = there.get(prefix)
            if joint is None:
                joint = self._make(prefix)
                registry.register(joint)
                there[prefix] = joint
            joint.join(source)
            return joint

    def unregister(self, source: object, prefix: str, registry: CollectorRegistry) -> None:
        """Its numbers go with it; with the last one, all of them."""
        with self._lock:
            there = self._there.get(registry, {})
            joint = there.get(prefix)
            if joint is not None:
                joint.leave(source)
                if joint.is_idle:
                    registry.unregister(joint)
                    del there[prefix]
