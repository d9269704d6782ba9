"""H-28, H-32 an ordered endpoint, whose deliverers are killed. In order, no gap, and repeats only
where the outcome of an attempt is unknown.

Delivered by a worker, or by an edge and two hubs; the target answers 503 or cuts the connection now and then.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.support.folders import quick_folder
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import HOOK_KILLS, proof_size
from tests.support.stores import fresh_store
from tests.support.webhook_kills import Order, Report, faults

SIZE = f"{HOOK_KILLS[proof_size()].hooks} webhooks, {HOOK_KILLS[proof_size()].kills} kills"

Chased = Callable[..., Report]


@pytest.fixture
def chased(tmp_path: Path) -> Iterator[Chased]:
    """A run in a process that forks: this one has threads."""
    with quick_folder(tmp_path) as folder, ExitStack() as stack:

        def run(store: str, **given: object) -> Report:
            url = stack.enter_context(fresh_store(store, folder))
            order = msgspec.convert({"store": url, "folder": str(folder), **given}, Order)
            command = [sys.executable, "-m", "tests.support.webhook_kills", msgspec.json.encode(order).decode()]
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment())
            assert done.returncode == 0, f"{done.stderr[-4000:]}\n{(folder / 'log').read_text()[-4000:]}"
            return msgspec.json.decode(done.stdout, type=Report)

        yield run


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("store", "via"), [(store, via) for store in ("sqlite", "postgres", "redis") for via in ("direct", "hub")]
)
def test_h28_h32_an_ordered_endpoint_keeps_its_order(chased: Chased, store: str, via: str) -> None:
    size = HOOK_KILLS[proof_size()]
    report = chased(store, via=via, hooks=size.hooks, kills=size.kills, limit=size.limit)
    assert report.faults == []
    assert report.delivered == size.hooks
    assert report.kills >= size.kills
    assert report.repeats > 0, "nothing was cut in the middle: it proves less than it says"


@pytest.mark.timeout(600)
def test_r0_an_endpoint_without_order_is_found(chased: Chased) -> None:
    found = chased("sqlite", via="direct", hooks=200, kills=1, limit=100, ordered=False).faults
    assert any("came before" in each for each in found)


GOOD = [("accept", "0"), ("refuse", "1"), ("accept", "1"), ("kill", "edge"), ("cut", "2"), ("accept", "2")]


def test_the_judge_lets_a_good_run_pass() -> None:
    assert faults(GOOD, 3, {"2": 1}) == []


@pytest.mark.parametrize(
    ("lines", "unknown", "said"),
    [
        (GOOD, {}, "accepted 2 times"),
        (GOOD[1:], {"2": 1}, "came before"),
        (GOOD[:-2], {}, "2 of 3"),
        ([*GOOD, ("accept", "1")], {"1": 1, "2": 1}, "came after"),
    ],
)
def test_the_judge_sees_what_is_wrong(lines: list[tuple[str, str]], unknown: dict[str, int], said: str) -> None:
    assert any(said in each for each in faults(lines, 3, unknown))
