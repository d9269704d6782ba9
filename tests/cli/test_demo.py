"""`redrive demo`: it ends by itself, adds up, and leaves only what it was asked to leave."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.demo import sums
from redrive.cli.demo.app import EFFECTS, LOAD
from redrive.cli.demo.command import Tour
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
