"""The bench measures on every store and leaves nothing behind.

Its seeds and bare loops leave what the verbs would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from bench import engines, growth, log, office, pages, rows
from bench.engines.base import Engine
from bench.harness import CannotMeasure
from bench.lab import Lab, Scale
from tests.bench.conftest import engine, started
from tests.bench.test_raw import test_the_bare_loops_leave_what_the_store_would
from tests.bench.test_seed import (
    test_seeded_items_wait_as_if_they_had_been_put,
    test_seeded_letters_are_of_many_causes_some_common_and_some_rare,
    test_seeded_letters_are_what_the_verbs_would_leave,
)

__all__ = [
    "engine",
    "started",
    "test_seeded_items_wait_as_if_they_had_been_put",
    "test_seeded_letters_are_of_many_causes_some_common_and_some_rare",
    "test_seeded_letters_are_what_the_verbs_would_leave",
    "test_the_bare_loops_leave_what_the_store_would",
]

SHARED = "letters-5000"
"""Too large to be made twice in a run, so it stays."""
ON_LETTERS = {"grow-letters", "letters-page", "export", "list-filtered"}


@pytest.fixture(params=engines.NAMES)
def running(request: pytest.FixtureRequest, started: Callable[[str], Engine]) -> Engine:
    return started(request.param)


@pytest.fixture
def lab(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name, few in {"ROUNDS": 2, "TURNS": 2, "BATCHES": 1}.items():
        monkeypatch.setattr(growth, name, few)
    for module in (pages, office):
        monkeypatch.setattr(module, "TIMES", 1)  # more of them make a better median, and no other path
    monkeypatch.setattr(log, "STEADY", 0.1)
    return Lab(engine, engine.scratch, Scale(concurrency=50, many=5_000, reader=0.2))


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


def test_a_side_that_runs_dry_is_no_figure(engine: Engine) -> None:
    side = growth.Side("dry", engine.empty("dry"), fill=150)

    async def run_dry() -> None:
        async with side:
            await side.finish()

    with pytest.raises(CannotMeasure, match="100 settled and 50 leased"):
        asyncio.run(run_dry())
