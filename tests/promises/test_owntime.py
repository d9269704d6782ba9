"""A worker's own time: what it waits for or sleeps through counts, what the machine keeps from it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rig.owntime import OwnTime

PID = 7


class Machine:
    """Its clock, and for how long each thread of a process had to wait for a processor."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._threads = folder / str(PID) / "task"
        monkeypatch.setattr(f"{OwnTime.__module__}.PROC", folder)
        monkeypatch.setattr(f"{OwnTime.__module__}.monotonic", lambda: self.now)

    def waited(self, thread: int, seconds: float) -> None:
        folder = self._threads / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"5 {int(seconds * 1e9)} 9\n")

    def passes(self, own: OwnTime, seconds: float) -> float:
        """With a look every now and then."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            own.look()
        return own.look()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, monkeypatch)
    made.waited(1, 3.0)
    return made


def test_all_of_it_counts_where_nobody_else_wants_the_machine(machine: Machine) -> None:
    assert machine.passes(OwnTime(PID), 2.0) == pytest.approx(2.0)


def test_what_its_threads_had_to_wait_does_not_count(machine: Machine) -> None:
    own = OwnTime(PID)
    machine.waited(1, 3.5)
    machine.waited(2, 0.25)
    assert machine.passes(own, 2.0) == pytest.approx(1.25)


def test_a_time_in_which_nobody_could_look_does_not_count(machine: Machine) -> None:
    own = OwnTime(PID)
    machine.now += 1.0
    assert own.look() == pytest.approx(0.0)
    assert machine.passes(own, 2.0) == pytest.approx(2.0)


def test_a_kernel_that_does_not_count_makes_it_all_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Machine(tmp_path, monkeypatch).passes(OwnTime(PID), 2.0) == pytest.approx(2.0)
