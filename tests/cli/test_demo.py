"""`redrive demo`: it ends by itself, adds up, and leaves only what it was asked to leave."""

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from blockbuster import BlockBuster

from redrive import Dead, Redrive
from redrive.cli.demo import crew, sums
from redrive.cli.demo.app import EFFECTS, LOAD, MAX_CRASHES, build
from redrive.cli.demo.command import Tour
from redrive.cli.exits import Exit
from tests.support.cli import here


@pytest.mark.parametrize("options", [["--keep"], ["--store", "sqlite:///demo.db"]])
def test_it_keeps_the_store_and_says_what_to_try(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(Tour, "take", lambda tour: [] if tour.accept() else ["nothing was accepted"])
    told = here(capsys, "demo", *options)
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    commands = [line.split() for line in lines[lines.index("Try next:") + 1 :] if line.startswith("  redrive ")]
    assert len(commands) == 3
    for _, *words in commands:
        assert here(capsys, *words).code == 0
    assert [*tmp_path.rglob("*.db")], "it is still there"


def test_it_adds_up_its_own_queues_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / EFFECTS).touch()

    async def beside_others() -> sums.Sums:
        app = Redrive("memory:", log=False)
        for queue in (*LOAD, "alpha"):
            app.queue(queue)
        async with app:
            await app.enqueue("alpha", 1)
            return await sums.ask(app, {})

    assert sums.add_up(tmp_path, {}, asyncio.run(beside_others())) == []
    told = capsys.readouterr().out
    assert "alpha" not in told
    assert all(queue in told for queue in LOAD)


def test_it_wants_a_store_without_its_queues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/mine.db"

    async def declare() -> None:
        app = Redrive(url, log=False)
        app.queue("orders", capacity=1)
        async with app:
            assert (await app.tally()).queues

    asyncio.run(declare())
    told = here(capsys, "demo", "--store", url)
    assert told.code == 6
    assert "has the queue orders already" in told.err
    told = here(capsys, "demo", "--store", "memory:")
    assert told.code == 2
    assert "not shared with worker processes" in told.err


@pytest.mark.slow
def test_the_tour_tells_what_does_not_add_up(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    blockbuster: BlockBuster,
) -> None:
    """Workers that only claim to have been killed: the poison item dies without a crash."""
    blockbuster.deactivate()  # its handlers write to a file, which stands for the world outside
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    claimed = iter([MAX_CRASHES, 0])

    def work(url: str, place: Path) -> int:
        async def until_idle() -> None:
            async with build(url, place) as app:
                await app.run(until_idle=True)

        asyncio.run(until_idle())
        return next(claimed)

    def kill(*_: int) -> None:
        raise Dead("killed, as they say")

    monkeypatch.setattr(crew, "work", work)
    monkeypatch.setattr("redrive.cli.demo.app.os", SimpleNamespace(kill=kill, getpid=os.getpid))
    told = here(capsys, "demo")
    assert told.code == Exit.FAILED
    lines = told.out.splitlines()
    assert [line for line in lines if line.startswith("WRONG")] == [
        "WRONG: the poison item was not dead after max_crashes"
    ]
    assert lines[-1] == "The promise was broken."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("codes", "killed", "said"),
    [
        ([-9, -9, -9, 0], 3, ""),
        ([-9, 7], None, "a worker process ended with 7"),
        ([-9] * crew.MOST_PROCESSES, None, "worker processes were killed, one after the other"),
    ],
)
def test_killed_workers_are_counted_and_others_end_the_tour(
    codes: list[int], killed: int | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter(codes)

    (tmp_path / crew.LOG).write_text("why it ended")

    async def one(*_: object) -> tuple[int, int]:
        return next(ends), 7

    monkeypatch.setattr(crew, "_one", one)
    if killed is not None:
        assert crew.work("sqlite:///x.db", tmp_path) == killed
        return
    with pytest.raises(crew.CrewFailed, match=said):
        crew.work("sqlite:///x.db", tmp_path)
