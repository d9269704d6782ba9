"""Gathering what a check finds, in the same words on every engine."""

from __future__ import annotations

from collections.abc import Mapping

from redrive.core.verbs import Finding

EXAMPLES = 10
"""So many are named; all are counted."""
COUNTERS = ("ready", "held", "parked", "leased", "done", "open", "archived", "trash", "cancelled")


class Findings:
    """Each thing once, with how often it was found and a few examples, in the order of the first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {}

    def add(self, kind: str, text: str, example: str | None = None) -> None:
        count, examples = self._found.get((kind, text), (0, ()))
        if example is not None and len(examples) < EXAMPLES:
            examples = (*examples, example)
        self._found[kind, text] = (count + 1, examples)

    def add_counters(self, kept: Mapping[str, Mapping[str, int]], counted: Mapping[str, Mapping[str, int]]) -> None:
        """`kept` and `counted`: by queue and counter."""
        for queue in sorted(kept.keys() | counted.keys(), key=str):
            if queue not in kept:
                self.add("counters", "queues that have items and are not declared", queue)
                continue
            there = counted.get(queue, {})
            wrong = [
                f"{name} {kept[queue].get(name, 0)} (there are {there.get(name, 0)})"
                for name in COUNTERS
                if kept[queue].get(name, 0) != there.get(name, 0)
            ]
            if wrong:
                self.add("counters", "queues whose counters differ from their items", f"{queue}: {', '.join(wrong)}")

    def add_causes(self, kept: Mapping[tuple[str, str], int], counted: Mapping[tuple[str, str], int]) -> None:
        """`kept` and `counted`: open letters by cause and queue."""
        for key in sorted(kept.keys() | counted.keys(), key=str):
            has, there = kept.get(key, 0), counted.get(key, 0)
            if has != there:
                cause, queue = key
                told = f"{cause} in {queue}: {has} (there are {there})"
                self.add("causes", "causes whose count differs from their open letters", told)

    def told(self) -> tuple[Finding, ...]:
        return tuple([Finding(*name, *what) for name, what in self._found.items()])
