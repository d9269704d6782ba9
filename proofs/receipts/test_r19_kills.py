"""R-19 a process is killed at the steps of a delivery. No receipt is lost, and the target sees one key for each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, Call
from tests.support.folders import quick_folder
from tests.support.receipt_crashes import SCENES, Executioner, lease_of
from tests.support.rig.fleet import ROOT, environment

Result = dict[str, Any]

ALL_CALLS = ",".join(map(str, range(1, 19)))
"""A run makes at least nine calls; each has two points."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as made:
        yield made


async def tried(folder: Path, store: str, broker: Broker, *points: str) -> list[Result]:
    """What became of each point, in a process that forks: this one has threads."""
    command = [sys.executable, "-m", "tests.support.receipt_crashes", str(folder), store, broker.url, *points]
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
    results: list[Result] = [json.loads(line) for line in out.splitlines()]
    for result in results:
        assert result["drained"] == 0, f"{result}: {err.decode(errors='replace')}"
        judge(result, broker)
    return results


def judge(result: Result, broker: Broker) -> None:
    found = {item["id"]: item for item in result["found"]["items"]}
    assert result["found"]["damage"] == [], result
    for item_id, scene, status in result["kept"]:
        assert item_id in found, f"{scene} {status} was durable, and is lost: {result}"
    for item in found.values():
        fate = SCENES[item["scene"]][item["status"]]
        assert item["state"] in fate.split(" or "), f"{item}: {result}"
        assert item["superseded"] or item["state"] != "cancelled", item
        check_target(result, item, broker)


def check_target(result: Result, item: Result, broker: Broker) -> None:
    """One receipt has one key, however often it came; and what is done was done there."""
    lease = lease_of(result["kind"], result["point"], item["scene"])
    tool = {"complete": "complete", "failed": "fail", "running": "report_progress"}[item["status"]]
    assert {call.key for call in broker.of(lease=lease, tool=tool)} <= {item["id"]}, f"{item}: {result}"
    there = item["id"] in broker.accepted
    if item["state"] == "done":
        assert there, f"{item}: {result}"
    elif item["status"] != "running":  # which may be there, and not be owed any more when the next process looks at it
        assert not there, f"{item}: {result}"
    tools = [call.tool for call in broker.of(lease=lease)]
    assert tools == sorted(tools, key="asyncgate.report_progress asyncgate.complete asyncgate.fail".index), (
        "what ran was told after its end"
    )


@pytest.fixture
def shot(broker: Broker) -> Broker:
    """A broker that answers each scene as it must, and kills at its points."""
    broker.rule(Executioner().met)
    return broker


@pytest.mark.parametrize(
    ("store", "points"),
    [
        ("sqlite", ("verb", "some:12", "sql", "some:12", "target", ALL_CALLS)),
        ("postgres", ("verb", "some:12", "target", ALL_CALLS)),
        ("redis", ("verb", "some:12", "target", ALL_CALLS)),
    ],
    ids=["sqlite", "postgres", "redis"],
)
async def test_r19_receipts_outlive_a_process_that_is_killed(
    folder: Path, shot: Broker, store: str, points: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    runs = await asyncio.gather(*(tried(folder, store, shot, *pair) for pair in batched(points)))
    results = [result for run in runs for result in run]
    check_run(runs[0][0])
    record_property("size", f"{check_kills(results)} kills")


def batched(points: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(points[::2], points[1::2], strict=True))


def check_run(clean: Result) -> None:
    assert clean["died"] == 0
    assert len(clean["kept"]) == sum(map(len, SCENES.values()))


def check_kills(results: list[Result]) -> int:
    killed = [result for result in results if result["point"] is not None and not result["missed"]]
    struck: int = sum(result["died"] == -9 for result in killed)
    # How often a worker looks for work depends on time, so a point near the end may not be reached.
    assert struck >= len(killed) * 0.8
    return struck


def judged(**changes: Any) -> None:
    """A run with one receipt, as it should be but for the changes."""
    item = {"id": "k", "scene": "ok", "status": "complete", "state": "done", "superseded": False}
    found = {"items": [item | changes], "damage": []}
    with Broker() as broker:
        arguments = {"lease_id": "verb.1.ok"}
        broker.calls.append(Call("asyncgate.complete", arguments, "k", 0, "/mcp", {}, b"", "ok"))
        broker.accepted["k"] = broker.calls[0]
        judge({"kind": "verb", "point": 1, "kept": [["k", "ok", "complete"]], "found": found}, broker)


def test_the_judge_lets_a_good_run_pass() -> None:
    judged()


@pytest.mark.parametrize("changes", [{"id": "other"}, {"state": "dead"}, {"state": "ready"}, {"status": "failed"}])
def test_the_judge_sees_what_is_wrong(changes: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        judged(**changes)
