"""Peers beside us: on the same server with the same settings, each at its own best, in a Python of their own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engines.base import Engine
from bench.harness import ANSWER, ROOT, CannotMeasure, Child
from bench.peers import VARIANTS

PYTHON = ROOT / ".venv" / "peers" / "bin" / "python"
GLANCE = 300
"""Jobs of the first look at a peer, by which the second is sized."""
CONTENDS = 0.6
"""Of the best one's rate: who stays below it when all are tried cannot be the best, and is not measured again."""
MOST = 60_000


@dataclass(frozen=True, slots=True)
class Contender:
    peer: str
    variant: int
    rate: float


class Beside:
    def __init__(self, engine: Engine, scratch: Path, python: Path, seconds: float) -> None:
        self._engine = engine
        self._scratch = scratch
        self._python = python
        self._seconds = seconds
        self._contenders: dict[bool, list[Contender]] = {}
        self.silent: dict[str, str] = {}
        """Peers that gave no figure, and why."""

    def check(self) -> None:
        """Before anything is measured: without peers there is nothing to stand beside."""
        if not self._python.exists():
            raise CannotMeasure(f"the peers' Python {self._python} is not there: `make bench` makes it, or --peers")

    def best(self, *, lax: bool = False) -> Contender:
        """The fastest in this breath, of those that could be."""
        if lax not in self._contenders:
            self._contenders[lax] = self._tried(lax=lax)
        found = []
        for one in self._contenders[lax]:
            count = max(GLANCE, min(MOST, int(one.rate * self._seconds)))
            found.append(Contender(one.peer, one.variant, self.drain(one.peer, one.variant, count, lax=lax)))
        return max(found, key=lambda one: one.rate)

    def _tried(self, *, lax: bool) -> list[Contender]:
        found = []
        for peer, variants in VARIANTS[self._engine.name].items():
            try:
                tried = [self._try(peer, variant, lax=lax) for variant in variants]
            except CannotMeasure as error:
                self.silent[peer] = str(error)
                continue
            found.append(max(tried, key=lambda one: one.rate))
        if not found:
            raise CannotMeasure(f"no peer gave a figure: {self.silent}")
        best = max(one.rate for one in found)
        return [one for one in found if one.rate >= CONTENDS * best]

    def _try(self, peer: str, variant: int, *, lax: bool) -> Contender:
        glance = self.drain(peer, variant, GLANCE, lax=lax)
        count = max(GLANCE, min(MOST, int(glance)))
        return Contender(peer, variant, self.drain(peer, variant, count, lax=lax))

    def drain(self, peer: str, variant: int, count: int, *, lax: bool) -> float:
        url = self._engine.empty("peer")
        with self._engine.lax(url):
            self._ask("fill", url, peer=peer, variant=variant, count=count)
        self._engine.rest()
        with self._engine.lax(url) if lax else nullcontext():
            rate = self._ask("drain", url, peer=peer, variant=variant, count=count)["rate"]
        self._engine.drop("peer")
        return float(rate)

    def enqueue(self, peer: str, seconds: float) -> float:
        """Items per second, one by one."""
        url = self._engine.empty("peer")
        return float(self._ask("enqueue", url, peer=peer, variant=1, count=0, seconds=seconds)["rate"])

    def _ask(self, role: str, url: str, **config: object) -> Mapping[str, Any]:
        given = {"engine": self._engine.name, "url": url, **config}
        with Child(role, self._scratch, given, module="bench.peers", python=str(self._python)) as child:
            return child.line(ANSWER)
