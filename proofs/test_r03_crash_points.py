"""R3 crash at every step. SIGKILL before a statement, or on either side of a request or store call, then a drain:
nothing lost, stuck, ended twice or half moved.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.rig.crash import spread
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import CRASH_ITEMS, CRASH_POINTS, proof_size

SIZE = f"{CRASH_POINTS[proof_size()]} points of each kind, {CRASH_ITEMS} items"

SIDE_BY_SIDE = 4
POINTS = [("sqlite", "sql"), ("sqlite", "verb"), ("postgres", "wire"), ("redis", "wire")]
"""Where each store can be killed: before its statements, or on either side of a verb or of a request."""


async def crash(folder: Path, store: str, kind: str, items: int, points: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.rig.crash", str(folder), store, kind, str(items), points]
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


@pytest.mark.timeout(3600)  # all thousand points on PostgreSQL, each with a scenario and a drain, in the full size
@pytest.mark.parametrize(("store", "kind"), POINTS)
async def test_r3_killed_at_each_point(folder: Path, store: str, kind: str) -> None:
    _, clean = await crash(folder, store, kind, CRASH_ITEMS, "count")
    assert clean["status"] == 0
    chosen = spread(clean["passed"], CRASH_POINTS[proof_size()])
    parts = [chosen[start::SIDE_BY_SIDE] for start in range(SIDE_BY_SIDE)]
    done = await asyncio.gather(*(crash(folder, store, kind, CRASH_ITEMS, ",".join(map(str, part))) for part in parts))
    results = [result for part in done for result in part]
    killed = sum(result["status"] == -9 for result in results)
    print(f"{store}, {kind}: {clean['passed']} points, {len(results)} tried, {killed} killed, 0 faults")  # noqa: T201 - by -s
    # How often a worker looks for work depends on time, so a point near the end may not be reached.
    assert killed >= len(results) * 0.8
