"""From readings to a table for people and JSON lines for machines."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lab import Reading

NOISY = 0.3
"""Half the range of the repeats as a share of their median, above which a difference is not a finding."""


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of a line's readings."""

    line: str
    value: float
    unit: str
    against: str
    baseline: float | None
    ratio: float | None
    at_least: float | None
    at_most: float | None
    spread: float
    repeats: int

    @property
    def figure(self) -> float:
        """What the target is for."""
        return self.value if self.ratio is None else self.ratio

    @property
    def target(self) -> str:
        unit = f" {self.unit}" if self.ratio is None else ""
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {bound:g}{unit}" for word, bound in bounds if bound is not None)

    @property
    def verdict(self) -> str:
        if not self.target:
            return ""
        short = self.at_least is not None and self.figure < self.at_least
        over = self.at_most is not None and self.figure > self.at_most
        return ("MISSED" if short or over else "ok") + (" (noisy)" if self.spread > NOISY else "")

    @property
    def missed(self) -> bool:
        return self.verdict.startswith("MISSED")


def lines_of(readings: Sequence[Reading]) -> list[Line]:
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.line, []).append(reading)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Reading]) -> Line:
    first = group[0]
    bases = [reading.baseline for reading in group if reading.baseline is not None]
    ratios = [reading.ratio for reading in group if reading.ratio is not None]
    # What is compared with the target is what has to be steady.
    steady = ratios or [reading.value for reading in group]
    return Line(
        line=first.line,
        value=statistics.median(reading.value for reading in group),
        unit=first.unit,
        against=first.against,
        baseline=statistics.median(bases) if bases else None,
        ratio=statistics.median(ratios) if ratios else None,
        at_least=first.at_least,
        at_most=first.at_most,
        spread=(max(steady) - min(steady)) / 2 / statistics.median(steady),
        repeats=len(group),
    )


def table(lines: Sequence[Line]) -> str:
    head = ["row", "value", "baseline", "", "ratio", "±", "target", "verdict"]
    rows = [head, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = (1, 2, 4, 5, 6)
    texts = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def _cells(line: Line) -> list[str]:
    return [
        line.line,
        f"{_number(line.value)} {line.unit}",
        "" if line.baseline is None else f"{_number(line.baseline)} {line.unit}",
        line.against,
        "" if line.ratio is None else f"{line.ratio:.2f}",
        f"{line.spread:.0%}" if line.repeats > 1 else "",
        line.target,
        line.verdict,
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(path: Path, machine: Mapping[str, object], readings: Sequence[Reading], facts: Sequence[Any]) -> None:
    """The machine first, then every single reading, the lines' medians, and what each worker said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = round(time.time())
    with path.open("w", encoding="utf-8") as out:
        out.write(json.dumps({"is": "machine", "at": at, **machine}) + "\n")
        for reading in readings:
            fields = {
                name: getattr(reading, name) for name in ("line", "value", "unit", "against", "baseline", "ratio")
            }
            out.write(json.dumps({"is": "reading", **fields}) + "\n")
        for line in lines_of(readings):
            fields = {name: getattr(line, name) for name in Line.__slots__}
            out.write(json.dumps({"is": "line", **fields, "target": line.target, "verdict": line.verdict}) + "\n")
        for fact in facts:
            out.write(json.dumps({"is": "worker", **fact}) + "\n")
