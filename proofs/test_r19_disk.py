"""R19 disk trouble. A disk fills, turns read-only or fails to sync: what is refused is said so, what was accepted is
there, and work resumes by itself.

Each case is a process of its own (tests/support/disk/scenes.py); where a machine does not allow one: "not run".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk.drive import drive, needs
from tests.support.disk.office import LETTERS
from tests.support.rig.size import FAILED_SYNCS, FAILED_WRITES, proof_size

SIZE = f"{len(FAILED_SYNCS[proof_size()])} failed syncs, {len(FAILED_WRITES[proof_size()])} failed writes"

BINDINGS = ("stdlib", "apsw")
NEEDS = {"full": "disk", "read-only": "disk", "memory": "memory"}
SAID = {
    "limit": {"StoreFull"},
    "memory": {"StoreFull"},
    "full": {"StoreFull"},
    "read-only": {"StoreForbidden"},
}
"""What callers may be told, beside that nobody can tell."""
OFFICES = ("office", "fresh-office")
"""The operator works with the store that met the full disk, or comes with a process of their own."""
LIMIT = 200.0


def play(folder: Path, scene: str, what: str, binding: str, *, limit: float = LIMIT) -> list[dict[str, Any]]:
    told = drive("scenes", scene, folder, what, binding, limit=limit)
    assert told
    for one in told:
        assert one["faults"] == {}, one
    return told


def in_trouble(folder: Path, kind: str, binding: str) -> None:
    if kind in NEEDS:
        needs(NEEDS[kind])
    (told,) = play(folder, "load", kind, binding)
    assert told["refusals"], "it was never in trouble"
    assert told["refusals"].keys() <= {*SAID[kind], "OutcomeUnknown"}, told["refusals"]
    assert told["after cut"] == {}
    assert told["readable"] > 0


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("kind", SAID)
def test_r19_trouble_during_load(tmp_path: Path, kind: str, binding: str) -> None:
    in_trouble(tmp_path, kind, binding)


# -- syncs that fail -------------------------------------------------------------------------------------------------


def listed(numbers: Iterable[int]) -> str:
    """Every third failure lasts: for as many syncs as a client tries again."""
    return ",".join(f"{number}-{number + 5}" if number % 3 == 0 else str(number) for number in numbers)


def fail_syncs(folder: Path, numbers: Iterable[int], binding: str) -> None:
    needs("disk")
    for told in play(folder, "syncs", listed(numbers), binding, limit=300):
        assert told["refusals"].keys() <= {"StoreUnavailable", "OutcomeUnknown"}
        assert told["durability"] == "power-loss"
        assert told["failed_syncs"], "it was never in trouble"


@pytest.mark.timeout(900)
def test_r19_failed_syncs(folder: Path) -> None:
    fail_syncs(folder, FAILED_SYNCS[proof_size()], "auto")


@pytest.mark.timeout(900)
def test_r19_failed_syncs_by_the_standard_library(folder: Path) -> None:
    fail_syncs(folder, FAILED_SYNCS[proof_size()][::5], "stdlib")


@pytest.mark.timeout(1800)
def test_r19_failed_writes(folder: Path) -> None:
    needs("disk")
    numbers = FAILED_WRITES[proof_size()]
    for told in play(folder, "writes", ",".join(map(str, numbers)), "auto", limit=300 + 5 * len(numbers)):
        assert told["failed_writes"], "it was never in trouble"
        assert told["refusals"].keys() <= {"StoreFull", "StoreUnavailable", "OutcomeUnknown"}


@pytest.mark.timeout(900)
def test_r19_killed_after_a_failed_sync(folder: Path) -> None:
    """What the next process finds in the log is in the kernel's memory, and not on the disk."""
    needs("disk")
    play(folder, "killed", listed(range(1, 25)), "auto", limit=300)


def test_r19_killed_after_a_failed_sync_and_read_before_it_is_written(folder: Path) -> None:
    """A reader keeps the log, and with it the place at which it is not on the disk."""
    needs("disk")
    play(folder, "killed-reader", listed(range(10, 25)), "auto", limit=120)


@pytest.mark.parametrize("beside", ["nobody", "reader"])
def test_r19_what_was_synced_is_not_told_as_not_written(folder: Path, beside: str) -> None:
    needs("disk")
    (told,) = play(folder, "log-index", beside, "auto")
    assert told["no_room"], "it was never in trouble"
    assert told["answers"].keys() <= {"accepted", "unknown"}


# -- the operator ----------------------------------------------------------------------------------------------------


def throw_away(folder: Path, scene: str, kind: str, binding: str) -> None:
    needs(NEEDS[kind])
    (told,) = play(folder, scene, kind, binding)
    assert told["told"] == "StoreFull"
    assert told["thrown away"] == LETTERS


@pytest.mark.parametrize(("scene", "kind"), [(OFFICES[0], "full"), (OFFICES[1], "full"), (OFFICES[0], "memory")])
def test_r19_letters_can_be_thrown_away_while_the_disk_is_full(folder: Path, scene: str, kind: str) -> None:
    throw_away(folder, scene, kind, "auto")


# -- rights ----------------------------------------------------------------------------------------------------------


def test_r19_a_folder_turned_read_only(folder: Path) -> None:
    (told,) = play(folder, "rights", "", "auto")
    assert told["told"] == {"open": "accepted", "new": "StoreForbidden", "file too": "StoreForbidden"}
