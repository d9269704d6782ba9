"""The summary of a run of the proofs: a line per promise with its stores, size, verdict and seconds.

A promise is a module. Its name is the first sentence of the module's docstring, and its size the module's text
`SIZE`. A run of all proofs also writes the table to build/prove.txt.
"""

from __future__ import annotations

import ast
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.stores import STORES

PROOFS = Path(__file__).parent
WIDTH = 64
"""Of a name; a longer one is cut."""


@dataclass
class Promise:
    name: str
    stores: set[str] = field(default_factory=set)
    sizes: dict[str, None] = field(default_factory=dict)
    tests: set[str] = field(default_factory=set)
    red: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.tests.add(report.nodeid)
        self.seconds += report.duration
        parameters = re.split(r"[\[\]-]", report.nodeid.rpartition("::")[2])
        self.stores.update(store for store in STORES if store in parameters)
        self.sizes.update((str(value), None) for name, value in report.user_properties if name == "size")
        if report.failed:
            self.red.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)

    @property
    def verdict(self) -> str:
        if self.red:
            return f"RED: {len(self.red)} of {len(self.tests)}"
        if self.skipped:
            return f"not run: {len(self.skipped)} of {len(self.tests)}"
        return "ok"

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        stores = " ".join(store for store in STORES if store in self.stores)
        return (
            self.name if len(self.name) <= WIDTH else self.name[: WIDTH - 1] + "…",
            stores,
            "; ".join(self.sizes) or f"{len(self.tests)} test{'s' * (len(self.tests) != 1)}",
            self.verdict,
            f"{self.seconds:.0f} s",
        )


def name_of(module: Path) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(module.read_text())) or module.stem
    first = re.split(r"\.\s|\.$|\n\n", text, maxsplit=1)[0]
    return " ".join(first.split())


def table(promises: list[Promise]) -> list[str]:
    rows = [each.row for each in sorted(promises, key=lambda each: _natural(each.name))]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=False)), row[4].rjust(widths[4])])
        for row in rows
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name)]


class Summary:
    """A plugin for pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._promises: dict[Path, Promise] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = self._config.rootpath / report.nodeid.partition("::")[0]
        if PROOFS in module.parents:
            if module not in self._promises:
                self._promises[module] = Promise(name_of(module))
            self._promises[module].add(report)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        promises = list(self._promises.values())
        if not promises:
            return
        ok = sum(each.verdict == "ok" for each in promises)
        lines = [*table(promises), f"{ok} of {len(promises)} ok in {time.monotonic() - self._began:.0f} s"]
        terminalreporter.section("promises")
        for line in lines:
            terminalreporter.write_line(line)
        if any(Path(arg).resolve() == PROOFS for arg in self._config.args):
            written = self._config.rootpath / "build" / "prove.txt"
            written.parent.mkdir(exist_ok=True)
            written.write_text("\n".join(lines) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config), "redrive-summary")
