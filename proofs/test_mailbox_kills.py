"""Mailbox loops killed. No message is lost, each poison message is one dead letter, and no request is answered twice.

Also across stores, where dead letters and replies are carried from one to the other.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

from tests.support.folders import quick_folder
from tests.support.mailbox_fates import ENDS_WELL, Report, decoded, faults
from tests.support.mailbox_kills import Means, Order
from tests.support.mailbox_plants import PLANTS
from tests.support.rig.fleet import ROOT, environment
from tests.support.rig.size import LOOP_KILLS, LoopKills, proof_size
from tests.support.stores import fresh_store

SIZE = f"{LOOP_KILLS[proof_size()].messages} messages, {LOOP_KILLS[proof_size()].kills} kills"

Chased = Callable[..., Report]
STORES = ("sqlite", "postgres", "redis")
CROSSINGS = (("sqlite", "sqlite"), ("redis", "postgres"))


@pytest.fixture
def chased(tmp_path: Path) -> Iterator[Chased]:
    """A run on stores of these kinds, in a process that forks: this one has threads."""
    with quick_folder(tmp_path) as folder, ExitStack() as stack:

        def run(source: str, target: str | None, size: LoopKills, *, means: Means = "kill", plant: str = "") -> Report:
            here = stack.enter_context(fresh_store(source, folder))
            there = here if target is None else stack.enter_context(fresh_store(target, folder))
            order = Order(here, there, str(folder), **asdict(size), seed=1, means=means, plant=plant)
            command = [sys.executable, "-m", "tests.support.mailbox_kills", msgspec.json.encode(order).decode()]
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment())
            assert done.returncode == 0, f"{done.stderr[-4000:]}\n{(folder / 'log').read_text()[-4000:]}"
            return decoded(done.stdout)

        yield run


def check(report: Report, size: LoopKills, *, crossing: bool = False) -> None:
    assert faults(report, crossing=crossing) == []
    assert len(report.fates) == size.messages + size.deadly
    assert report.kills == size.kills, "there was too little to do: it proves less than it says"
    assert report.died > 0
    assert sum(fate.lost for fate in report.fates) > 0
    well = [fate for fate in report.fates if fate.kind in ENDS_WELL and fate.state == "done"]
    assert len(well) > size.messages / 2, "who is killed too often is given up, but that is the exception"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", STORES)
def test_loops_are_killed(chased: Chased, kind: str) -> None:
    size = LOOP_KILLS[proof_size()]
    check(chased(kind, None, size), size)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("source", "target"), CROSSINGS)
def test_loops_are_killed_across_stores(chased: Chased, source: str, target: str) -> None:
    size = LOOP_KILLS[proof_size()]
    check(chased(source, target, size), size, crossing=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_loops_that_stood_still_change_nothing_late(chased: Chased, kind: str) -> None:
    """Stopped, and woken when others have had what they had in hand: what they then say does not count."""
    size = LOOP_KILLS[proof_size()]
    check(chased(kind, None, size, means="stop"), size)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("source", "target"), [("sqlite", "sqlite"), ("postgres", None)])
def test_a_group_that_is_told_to_end_loses_nothing_and_repeats_nothing(
    chased: Chased, source: str, target: str | None
) -> None:
    size = in_order(LOOP_KILLS[proof_size()])
    check_ended(chased(source, target, size, means="term"), size, crossing=target is not None)


def in_order(size: LoopKills) -> LoopKills:
    """Whoever is told to end goes on for a while: there is less to do for the others."""
    return replace(size, deadly=0, messages=2 * size.messages, kills=size.messages // 15)


def check_ended(report: Report, size: LoopKills, *, crossing: bool = False) -> None:
    """By SIGTERM, again and again: what is begun is ended, and the rest is given back."""
    assert faults(report, crossing=crossing) == []
    assert report.kills == size.kills
    assert [fate for fate in report.fates if fate.lost or fate.crashes] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_loop_that_writes_twice_is_found(chased: Chased, plant: str) -> None:
    """Whom nobody kills is not found: it is the kills that tell."""
    assert faults(chased("sqlite", None, LoopKills(40, 0, 0, 60), plant=plant), crossing=False) == []
    assert any(
        "was answered" in each
        for each in faults(chased("sqlite", None, LoopKills(250, 0, 30, 200), plant=plant), crossing=False)
    )
