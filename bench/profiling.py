"""Where a worker's time goes, thread by thread. From 3.12 on all threads share one profiler, so there we sample."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

TOP = 25
WAITS = ("'poll' of 'select.", "'get' of '_queue.", "'acquire' of '_thread.lock'")
"""Functions whose time is waiting for somebody else."""


class Profiler(Protocol):
    def start(self) -> None: ...
    def report(self, items: int) -> dict[str, str]: ...


def profiler() -> Profiler:
    return Tracer() if sys.version_info < (3, 12) else Sampler()


class Tracer:
    """One cProfile per thread. It slows small functions most: read it for calls and shares, not for absolute times.

    Times are on the wall: a call that lets go of the interpreter lock (`send` wakes the other thread) includes getting
    it back.
    """

    def __init__(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}

    def start(self) -> None:
        original = threading.Thread.run
        profiles = self._profiles

        def run(thread: threading.Thread) -> None:
            profile = profiles[thread.name] = cProfile.Profile()
            profile.runcall(original, thread)

        threading.Thread.run = run  # type: ignore[method-assign, assignment]
        mine = self._profiles["loop thread"] = cProfile.Profile()
        mine.enable()

    def report(self, items: int) -> dict[str, str]:
        """Call it when the threads have ended."""
        self._profiles["loop thread"].disable()
        tables = {name: _table(profile, items) for name, profile in self._profiles.items()}
        return {name: table for name, table in tables.items() if table}


def _table(profile: cProfile.Profile, items: int) -> str:
    """Empty for a thread that did nothing worth a microsecond an item."""
    stats = pstats.Stats(profile, stream=io.StringIO())
    every = stats.stats.items()  # type: ignore[attr-defined]
    rows = sorted((row for row in every if not any(wait in row[0][2] for wait in WAITS)), key=lambda row: -row[1][2])
    if sum(row[1][2] for row in rows) / items < 1e-6:
        return ""
    lines = ["  own µs/item   cum µs/item  calls/item  function"]
    for (file, line, name), (_, calls, own, total, _) in rows[:TOP]:
        place = name if file == "~" else f"{_short(file)}:{line} {name}"
        lines.append(f"{own / items * 1e6:13.2f} {total / items * 1e6:13.2f} {calls / items:11.2f}  {place}")
    return "\n".join(lines)


class Sampler:
    """Every millisecond, what each thread is in. It sees most what lets go of the interpreter lock."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.is_set():
            time.sleep(0.001)
            self._samples += 1
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way to see other threads
                if ident != self._thread.ident:
                    self._counts.setdefault(names.get(ident, str(ident)), Counter())[_place(frame)] += 1

    def report(self, items: int) -> dict[str, str]:
        self._stop.set()
        self._thread.join()
        head = f"  share of {self._samples} samples ({items} items)"
        return {name: "\n".join([head, *self._lines(counts)]) for name, counts in self._counts.items()}

    def _lines(self, counts: Counter[str]) -> list[str]:
        return [f"{count / self._samples:8.1%}  {place}" for place, count in counts.most_common(TOP)]


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


def threads_cpu(cpu: Callable[[int], dict[int, float]]) -> dict[str, float]:
    """CPU seconds by the names Python gives its threads."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for ident, seconds in cpu(os.getpid()).items():
        name = names.get(ident, "other")
        found[name] = found.get(name, 0.0) + seconds
    return found
