"""The growth rows at a small size: they measure what they say, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from bench import growth, log, rows
from bench.__main__ import main
from bench.harness import CannotMeasure
from bench.lab import Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name, few in {"ROUNDS": 2, "TURNS": 2, "BATCHES": 1}.items():
        monkeypatch.setattr(growth, name, few)
    monkeypatch.setattr(log, "STEADY", 0.1)
    return Lab(tmp_path, concurrency=50, many=5_000, reader=0.2)


@pytest.mark.parametrize("name", rows.GROWTH)
def test_each_row_gives_readings_with_a_target(lab: Lab, name: str) -> None:
    readings = rows.ROWS[name](lab)
    assert any(reading.at_most is not None for reading in readings)
    assert all(reading.value > 0 for reading in readings)
    if name.startswith("grow-"):
        lines = Counter(reading.line for reading in readings)
        assert set(lines.values()) == {growth.ROUNDS}, "one reading a round, so that `report` takes the median of them"
    left = sorted(path.name for path in lab.scratch.glob("*.db"))
    assert left == (["letters-5000.db"] if name in {"grow-letters", "letters-page"} else [])


def test_a_side_that_runs_dry_is_no_figure(tmp_path: Path) -> None:
    async def run_dry() -> None:
        async with growth.Side("dry", tmp_path / "dry.db", fill=150) as side:
            await side.finish()

    with pytest.raises(CannotMeasure, match="100 settled and 50 leased"):
        asyncio.run(run_dry())


def test_groups_name_their_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.GROUPS["all"] == (*rows.GROUPS["usual"], *rows.GROUPS["growth"])
    monkeypatch.setattr("sys.argv", ["bench", "--rows", "growth,nothing"])
    with pytest.raises(SystemExit):
        main()
    assert "'nothing' is not one of" in capsys.readouterr().err
