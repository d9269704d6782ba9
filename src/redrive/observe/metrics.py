"""Metrics of one source: counters, gauges and histograms, exported to prometheus_client.

A source (`Metrics`) declares its families and counts. Gauges of a store are asked at scrape time (`Asked`), all at once
and with one timeout. Nothing here imports prometheus_client before `register` is called.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.errors import ConfigError, InvalidParameterError, MissingExtra
from redrive.stores.base import Store

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from redrive.observe.prometheus import Joint

V = TypeVar("V")

ASK_TIMEOUT = 2.0
"""Seconds that a scrape or a probe waits for the stores; after that it reports the last known values."""
_PREFIX = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True)
class Family:
    """`name` is without the prefix, and for a counter without `_total`. `buckets`: upper bounds of a histogram."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass
class Distribution:
    """A histogram: the number of values in each bucket (the last one has no upper bound), and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def __add__(self, other: Distribution) -> Distribution:
        counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        return Distribution(self.bounds, counts, self.sum + other.sum)

    def __copy__(self) -> Distribution:
        return Distribution(self.bounds, list(self.counts), self.sum)


class Sample(NamedTuple):
    family: str
    labels: tuple[str, ...]
    value: Any
    """A number, or the Distribution of a histogram."""


# --- gauges that a store is asked for ---


@dataclass(frozen=True)
class Known(Generic[V]):
    """The last answer. `value` None: there was none. `error`: why it may be out of date. `at`: monotonic seconds."""

    value: V | None = None
    error: str = ""
    at: float = 0.0


class Asked(ABC, Generic[V]):
    """A value that a store is asked for, from any thread. At most one call is under way; the last answer is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Future[None] | None = None
        self.known: Known[V] = Known()

    def begin(self) -> Future[None] | None:
        """Ask, unless a call is under way. None: no answer can be waited for here."""
        with self._lock:
            if self._under_way is None or self._under_way.done():
                self._under_way = self._start()
            return self._under_way

    def answered(self, value: V) -> None:
        self.known = Known(value, at=time.monotonic())

    def failed(self, error: Exception) -> None:
        from redrive.engine.evidence import text_of

        self.known = replace(self.known, error=redact_text(text_of(error)) or type(error).__name__)

    @abstractmethod
    def _start(self) -> Future[None] | None: ...


class AskedInThread(Asked[V]):
    """By a function that blocks, in a thread of its own."""

    def __init__(self, ask: Callable[[], V]) -> None:
        super().__init__()
        self._ask = ask

    def _start(self) -> Future[None]:
        under_way: Future[None] = Future()
        threading.Thread(target=self._run, args=(under_way,), name="redrive-gauge", daemon=True).start()
        return under_way

    def _run(self, under_way: Future[None]) -> None:
        try:
            self.answered(self._ask())
        except Exception as error:  # noqa: BLE001 - the function of any store; the scrape reports it
            self.failed(error)
        under_way.set_result(None)


class AskedInLoop(Asked[V]):
    """By a coroutine, in the event loop that `loop` gives; None while there is none. In that loop nothing can wait for
    the answer: it is there for the next one who asks.
    """

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, V]], loop: Callable[[], asyncio.AbstractEventLoop | None]
    ) -> None:
        super().__init__()
        self._ask = ask
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> Future[None] | None:
        under_way = super().begin()
        return None if _running_loop() is self._loop() else under_way

    def _start(self) -> Future[None] | None:
        loop = self._loop()
        return asyncio.run_coroutine_threadsafe(self._run(), loop) if loop is not None and loop.is_running() else None

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            self.answered(await self._ask())
        except Exception as error:  # noqa: BLE001 - the verb of any store; the scrape reports it
            self.failed(error)

    async def close(self) -> None:
        """Cancels a call that is under way. The last answer stays."""
        task = self._task
        # The task of a parent process, before a fork, is in a loop that does not run here.
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class OpenLetters(AskedInLoop[int]):
    """The open letters of one queue: asked of the store, and counted on between two answers.

    `on_failure` is called when a scrape cannot ask the store.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        super().__init__(self.refresh, lambda: self._home)
        self._on_failure = on_failure
        self._home: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._queue, self._added = "", 0
        self.key: tuple[str, ...] = ()

    @property
    def value(self) -> int:
        return self.known.value or 0

    async def open(self, store: Store, queue: str) -> None:
        self._store, self._queue, self.key = store, queue, (*store_key(store), queue)
        self._home = asyncio.get_running_loop()
        await self.refresh()

    async def close(self) -> None:
        self._store = self._home = None
        await super().close()

    def add(self) -> None:
        self._added += 1
        self.answered(self.value + 1)

    async def refresh(self) -> int:
        while self._store is not None:
            added = self._added
            tally = await self._store.tally(members=(self._queue,))
            # The answer may or may not include a letter that was added meanwhile: ask again.
            if added == self._added:
                self.answered(tally.row(self._queue).open)
                break
        return self.value

    def failed(self, error: Exception) -> None:
        super().failed(error)
        self._on_failure()


def ask_all(asked: Sequence[Asked[V]], timeout: float = ASK_TIMEOUT) -> list[Known[V]]:
    """All at once; together they have one timeout."""
    under_way = [each.begin() for each in asked]
    wait([each for each in under_way if each is not None], timeout)
    late = f"no answer within {timeout:g} s"
    return [
        each.known if future is None or future.done() else replace(each.known, error=late)
        for each, future in zip(asked, under_way, strict=True)
    ]


def store_key(store: Store) -> tuple[str, ...]:
    """Equal for all that see the same items. Each memory store is one of its own."""
    info = store.info()
    return info.engine, info.location, str(id(store)) if info.engine == "memory" else ""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- sources ---


class Gauge(NamedTuple):
    """What is asked at scrape time. Gauges of one key measure one thing: it is asked once, the newest answer counts."""

    key: Any
    asked: Asked[Any]
    samples: Callable[[Any], Iterable[Sample]]


class Metrics:
    """A source of metrics. Sources of one class and prefix that share a registry are exported as one: their counters
    are added up, and a store that several of them see is asked once.
    """

    families: ClassVar[tuple[Family, ...]] = ()
    _error: ClassVar[type[ConfigError | InvalidParameterError]] = ConfigError
    _field: ClassVar[str] = "prefix"

    def __init__(self, prefix: str = "redrive") -> None:
        self.prefix = self.check_prefix(prefix)
        self._lock = threading.Lock()
        # What has no labels is there from the start, as zero.
        self._counters: dict[str, Counter[Any]] = {
            each.name: Counter() if each.labels else Counter({(): 0})
            for each in self.families
            if each.kind != "histogram"
        }
        self._bounds = {each.name: each.buckets for each in self.families if each.kind == "histogram"}
        self._spreads: dict[str, dict[Any, Distribution]] = {name: {} for name in self._bounds}
        self._joints: set[Joint] = set()

    @classmethod
    def check_prefix(cls, prefix: str) -> str:
        given: object = prefix
        if not isinstance(given, str) or not _PREFIX.fullmatch(given):
            hint = "use letters, digits and underscores, such as agents"
            raise cls._error(f"{shown(prefix)} cannot begin the name of a metric", field=cls._field, hint=hint)
        return prefix

    def gauges(self) -> Iterable[Gauge]:
        """What is asked at scrape time."""
        return ()

    def samples(self) -> list[Sample]:
        """What was counted in this process. Labels of one name may be counted without the tuple around it."""
        with self._lock:
            counted: list[tuple[str, Mapping[Any, Any]]] = [*self._counters.items(), *self._spreads.items()]
            return [
                Sample(family, labels if isinstance(labels, tuple) else (labels,), copy(value))
                for family, values in counted
                for labels, value in tuple(values.items())
            ]

    def _count(self, family: str, labels: tuple[str, ...] = (), by: int = 1) -> None:
        with self._lock:
            self._counters[family][labels] += by

    def _observe(self, family: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            found = self._spreads[family].get(labels)
            if found is None:
                found = self._spreads[family][labels] = Distribution(self._bounds[family])
            found.add(value)

    def register(self, registry: CollectorRegistry | None = None) -> None:
        """With prometheus_client's default registry if none is given. Needs `redrive[metrics]`."""
        check_prometheus()
        from redrive.observe import prometheus

        try:
            self._joints.add(prometheus.register(self, registry))
        except ValueError as error:
            hint = "choose another prefix"
            raise self._error(f"the registry has such names: {error}", field=self._field, hint=hint) from None

    def unregister(self, registry: CollectorRegistry | None = None) -> None:
        """Take its numbers out of a registry; with the last source, the names too."""
        check_prometheus()
        from redrive.observe import prometheus

        prometheus.unregister(self, registry)

    def _retire(self) -> None:
        """It counts no more. What it has counted stays in the registries, as counters never go back."""
        for joint in self._joints:
            joint.retire(self)


def check_prometheus() -> None:
    try:
        import prometheus_client  # noqa: F401 - whether it is installed
    except ImportError:
        hint = 'pip install "redrive[metrics]"'
        raise MissingExtra("prometheus_client is not installed", field="metrics", hint=hint) from None
