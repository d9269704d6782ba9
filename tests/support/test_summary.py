"""The summary of the proofs: a line per promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofs.summary import Promise, name_of, table


def report(test: str, outcome: str = "passed", seconds: float = 1.0, size: str | None = None) -> pytest.TestReport:
    sizes = [] if size is None else [("size", size)]
    return pytest.TestReport(test, ("", 0, ""), {}, outcome, None, "call", duration=seconds, user_properties=sizes)  # type: ignore[arg-type]


def test_a_line_has_name_stores_size_verdict_and_seconds() -> None:
    kills, herd = Promise("R4 random kills"), Promise("R23 herd")
    for store in ("redis", "sqlite"):
        kills.add(report(f"proofs/test_r04.py::test_kills[{store}-7]", seconds=30.4, size="3,000 items, 20 kills"))
    herd.add(report("proofs/test_r23.py::test_herd"))
    herd.add(report("proofs/test_r23.py::test_flood", "failed"))
    assert table([herd, kills]) == [
        "R4 random kills  sqlite redis  3,000 items, 20 kills  ok           61 s",
        "R23 herd                       2 tests                RED: 1 of 2   2 s",
    ]
    herd.red.clear()
    herd.add(report("proofs/test_r23.py::test_disk", "skipped"))
    assert herd.verdict == "not run: 1 of 3"


@pytest.mark.parametrize(
    ("docstring", "name"),
    [
        ("R23 herd and fairness. Retries are spread.", "R23 herd and fairness"),
        ("R10: items\nthat kill.\n\nMore.", "R10: items that kill"),
        ("R4: once in 1.5 s", "R4: once in 1.5 s"),
    ],
)
def test_the_name_is_the_first_sentence(tmp_path: Path, docstring: str, name: str) -> None:
    module = tmp_path / "test_r04.py"
    module.write_text(f'"""{docstring}"""\n')
    assert name_of(module) == name
