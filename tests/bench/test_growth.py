"""The growth rows at a small size: they measure what they say, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bench import engines, growth, log, office, pages, rows
from bench.__main__ import main
from bench.engines.base import Engine
from bench.harness import CannotMeasure
from bench.lab import Lab, Scale

SHARED = "letters-5000"
"""Too large to be made twice in a run, so it stays."""
ON_LETTERS = {"grow-letters", "letters-page", "export", "list-filtered"}


@pytest.fixture
def lab(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name, few in {"ROUNDS": 2, "TURNS": 2, "BATCHES": 1}.items():
        monkeypatch.setattr(growth, name, few)
    for module in (pages, office):
        monkeypatch.setattr(module, "TIMES", 1)  # more of them make a better median, and no other path
    monkeypatch.setattr(log, "STEADY", 0.1)
    return Lab(engine, engine.scratch, Scale(concurrency=50, many=5_000, reader=0.2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("running", "name"), [(store, name) for store in engines.NAMES for name in rows.GROWTH[store]], indirect=["running"]
)
def test_each_row_gives_readings_with_a_target(lab: Lab, name: str) -> None:
    readings = rows.GROWTH[lab.engine.name][name](lab)
    assert any(reading.at_most is not None or reading.at_least is not None for reading in readings)
    assert all(reading.value > 0 for reading in readings)
    if name.startswith("grow-"):
        lines = Counter(reading.line for reading in readings)
        assert set(lines.values()) == {growth.ROUNDS}, "one reading a round, so that `report` takes the median of them"
    assert lab.engine.left() == ({SHARED} if name in ON_LETTERS else set())


@pytest.mark.slow
def test_a_side_that_runs_dry_is_no_figure(engine: Engine) -> None:
    side = growth.Side("dry", engine.empty("dry"), fill=150)

    async def run_dry() -> None:
        async with side:
            await side.finish()

    with pytest.raises(CannotMeasure, match="100 settled and 50 leased"):
        asyncio.run(run_dry())


@pytest.mark.parametrize("store", engines.NAMES)
def test_groups_name_their_rows(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = rows.chosen(store, ["all"])
    assert every == [name for group in ("usual", "features", "growth") for name in rows.chosen(store, [group])]
    assert set(rows.NAMED).isdisjoint(every), "what needs another checkout is asked for by name only"
    assert rows.chosen(store, ["drain", "all"]) == ["drain", *(name for name in every if name != "drain")]
    monkeypatch.setattr("sys.argv", ["bench", "--store", store, "--rows", "growth,nothing"])
    with pytest.raises(SystemExit):
        main()
    assert "'nothing' is not one of" in capsys.readouterr().err
