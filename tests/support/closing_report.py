"""The end of a run's output: what was not tried, the number of tests, their time, and the slowest of them.

With xdist the controller prints it, which gets the reports of all workers.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict

import pytest

SLOWEST = 10
UNDECLARED = re.compile(r"the engine does not declare .*")
"""Skips of the conformance suite, which are no gap: an engine promises no more than it declares."""


class ClosingReport:
    """A plugin for pytest."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
        """A skip is told at the end, by its reason, and not by a letter each."""
        return ("skipped", "", "SKIPPED") if report.skipped and not hasattr(report, "wasxfail") else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._skipped[
                UNDECLARED.sub("by design: the engine does not declare the capability (memory is not durable)", reason)
            ] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        if self._skipped:
            terminalreporter.section("not tried")
        for reason, count in sorted(self._skipped.items()):
            write(f"{count:>5} {'test ' if count == 1 else 'tests'}  {reason}")
        if len(self._seconds) <= SLOWEST:
            return
        terminalreporter.section(f"the slowest {SLOWEST}, with set-up and teardown")
        for name, seconds in sorted(self._seconds.items(), key=lambda each: -each[1])[:SLOWEST]:
            write(f"{seconds:>7.2f} s  {name}")
        in_all, elapsed = sum(self._seconds.values()), time.monotonic() - self._began
        write(f"{len(self._seconds):,} tests in {elapsed:.0f} s ({in_all:,.0f} s of test time)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ClosingReport(), "redrive-closing-report")
