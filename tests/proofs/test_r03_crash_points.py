"""R3: SIGKILL at every step of a fixed scenario, then a drain. Nothing lost, stuck, ended twice or moved by half."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import quick_folder
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import CRASH_ITEMS, CRASH_POINTS, Size, proof_size

SIDE_BY_SIDE = 4


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


async def crash(folder: Path, kind: str, items: int, points: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.rig.crash", str(folder), kind, str(items), points]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, err.decode(errors="replace")
    results: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    for result in results:
        assert result["drained"] == 0, f"{result}: {err.decode(errors='replace')}"
        assert result["faults"] == {}, result
    return results


async def crash_everywhere(folder: Path, kind: str, size: Size) -> None:
    items = CRASH_ITEMS[size]
    (clean,) = await crash(folder, kind, items, "count")
    assert clean["status"] == 0
    points = chosen(clean["passed"], CRASH_POINTS[size])
    parts = [points[start::SIDE_BY_SIDE] for start in range(SIDE_BY_SIDE)]
    done = await asyncio.gather(*(crash(folder, kind, items, ",".join(map(str, part))) for part in parts if part))
    results = [result for part in done for result in part]
    killed = sum(result["status"] == -9 for result in results)
    print(f"{kind}: {clean['passed']} points, {len(results)} tried, {killed} killed, 0 faults")  # noqa: T201 - by -s
    # How often a worker looks for work depends on time, so a point near the end may not be reached.
    assert killed >= len(results) * 0.8


def chosen(count: int, limit: int | None) -> Sequence[int]:
    """All points, or so many, evenly spread with the first and the last."""
    if limit is None or limit >= count:
        return range(1, count + 1)
    return sorted({1 + round(step * (count - 1) / (limit - 1)) for step in range(limit)})


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["sql", "verb"])
async def test_r3_killed_at_some_points_smoke(folder: Path, kind: str) -> None:
    await crash_everywhere(folder, kind, Size.SMOKE)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sql", "verb"])
async def test_r3_killed_at_every_point(folder: Path, kind: str) -> None:
    await crash_everywhere(folder, kind, proof_size())


def test_points_are_spread_with_both_ends() -> None:
    assert list(chosen(5, None)) == [1, 2, 3, 4, 5]
    assert chosen(100, 3) == [1, 51, 100]
    assert list(chosen(3, 10)) == [1, 2, 3]
