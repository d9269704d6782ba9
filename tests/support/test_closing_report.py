"""A run ends with what was not tried, the number of tests, their time, and the slowest of them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.support.closing_report import pytest_configure

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    report.duration = 1.25 if item.name == "test_slow" else 0.25
    return report
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(12))
def test_quick(n): pass

def test_slow(): pass

@pytest.mark.parametrize("n", range(3))
def test_without(n): pytest.skip("there is no Redis: install redis-server")

@pytest.mark.skipif(True, reason="only root may")
def test_as_root(): pass

@pytest.mark.parametrize("what", ["wait", "fork"])
def test_undeclared(what): pytest.skip(f"the engine does not declare {what!r}")

@pytest.mark.xfail(strict=True, reason="known")
def test_known(): assert 0

def test_red(): assert 0
"""


def test_each_reason_is_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=13, skipped=6, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "*.py .............xF*",
            "*= FAILURES =*",
            ">*assert 0",
            "*= not tried =*",
            "    2 tests  by design: the engine does not declare the capability (memory is not durable)",
            "    1 test   only root may",
            "    3 tests  there is no Redis: install redis-server",
            "*= the slowest 10, with set-up and teardown =*",
            "   3.75 s  *::test_slow",
            "   0.75 s  *::test_quick*",
            "21 tests in * s (18 s of test time)",
            "FAILED *::test_red*",
        ]
    )


def test_a_single_test_is_not_ranked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_one(): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*slowest*")
    result.stdout.no_fnmatch_line("*not tried*")
