"""A target is for the ratio where there is one, and it can be a floor or a ceiling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import report
from bench.lab import Reading


def line(*readings: Reading) -> report.Line:
    (found,) = report.lines_of(readings)
    return found


@pytest.mark.parametrize(
    ("reading", "verdict", "target"),
    [
        (Reading("drain", 50.0, "/s", "raw", 100.0, at_least=0.4), "ok", "at least 0.4"),
        (Reading("drain", 30.0, "/s", "raw", 100.0, at_least=0.4), "MISSED", "at least 0.4"),
        (Reading("growth", 12.0, "µs", "few", 10.0, at_most=1.3), "ok", "at most 1.3"),
        (Reading("growth", 14.0, "µs", "few", 10.0, at_most=1.3), "MISSED", "at most 1.3"),
        (Reading("page", 49.0, "ms", at_most=50.0), "ok", "at most 50 ms"),
        (Reading("page", 51.0, "ms", at_most=50.0), "MISSED", "at most 50 ms"),
        (Reading("memory", 51.0, "ms"), "", ""),
    ],
)
def test_the_verdict_follows_the_target(reading: Reading, verdict: str, target: str) -> None:
    found = line(reading)
    assert (found.verdict, found.target, found.missed) == (verdict, target, verdict == "MISSED")


def test_the_median_of_ratios_decides_and_not_the_worst() -> None:
    found = line(*(Reading("growth", cost, "µs", "few", 10.0, at_most=1.3) for cost in (12.0, 40.0, 11.0, 12.5, 30.0)))
    assert found.figure == pytest.approx(1.25)
    assert found.verdict == "ok (noisy)"


def test_the_table_and_the_file_say_the_target(tmp_path: Path) -> None:
    readings = [Reading("growth", 14.0, "µs", "few", 10.0, at_most=1.3), Reading("page", 3.0, "ms", at_most=50.0)]
    table = report.table(report.lines_of(readings))
    assert "at most 1.3  MISSED" in table
    assert "at most 50 ms  ok" in table
    report.write(tmp_path / "latest.jsonl", {}, readings, [])
    said = [json.loads(text) for text in (tmp_path / "latest.jsonl").read_text().splitlines()]
    (growth,) = [one for one in said if one["is"] == "line" and one["line"] == "growth"]
    assert (growth["at_most"], growth["target"], growth["verdict"]) == (1.3, "at most 1.3", "MISSED")
