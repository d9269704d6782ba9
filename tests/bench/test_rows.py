"""Groups of rows of the bench. That each row measures: proofs/test_bench.py."""

from __future__ import annotations

import pytest

from bench import engines, features, rows
from bench.__main__ import main
from bench.engines.base import Engine
from bench.lab import Lab


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


def test_leases_of_a_family_are_measured_with_and_without_idle_members(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "MEMBERS", 200)
    monkeypatch.setattr(features, "SERIAL", 20)
    readings = rows.FEATURES["members"](Lab(engine, engine.scratch))
    assert [reading.at_most for reading in readings] == [1.3] * 6
    assert all(reading.value > 0 and reading.ratio is not None for reading in readings)
