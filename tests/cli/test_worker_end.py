"""`redrive worker list`, `drain` and `stop`. How a worker obeys them is in tests/engine/test_orders.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from redrive.cli import worker_list
from redrive.cli.exits import Exit
from redrive.core.verbs import WorkerBeat, WorkerFacts
from redrive.engine import orders
from redrive.engine.orders import Order
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.support.cli import Told, here, on_sqlite, on_terminal

T = TypeVar("T")
HOUR = 3_600_000
WHY = ("--reason", "new release")

pytestmark = [pytest.mark.usefixtures("on_store"), on_sqlite]


def at_store(url: str, ask: Callable[[Store], Awaitable[T]]) -> T:
    async def asked() -> T:
        store = await store_from_url(url).open()
        try:
            return await ask(store)
        finally:
            await store.close()

    return asyncio.run(asked())


@pytest.fixture
def fleet(on_store: str) -> str:
    """Two that are alive, one that drains, one that stopped and one that was lost. The store's URL."""

    async def begin(store: Store) -> None:
        facts = WorkerFacts(("emails", "calls"), "web", 11, "1.0", 1, running=3, slots=50)
        await store.beat("web-11-aaaa", facts, HOUR)
        await store.beat("web-12-bbbb", WorkerFacts(("emails",), "web", 12, "1.0", 1, slots=8), HOUR)
        await store.beat("web-13-cccc", WorkerFacts((), "web", 13, order="drain"), HOUR)
        await store.beat("web-14-dddd", WorkerFacts((), "web", 14, stopped=True), 0)
        await store.beat("web-15-eeee", WorkerFacts((), "web", 15), -HOUR)

    at_store(on_store, begin)
    return on_store


def ordered(url: str) -> dict[str, Order]:
    async def read(store: Store) -> dict[str, Order]:
        found = [(each.key, await orders.read(store, each.key)) for each in await store.documents(orders.KIND)]
        return {name: order for name, order in found if order is not None}

    return at_store(url, read)


# -- list --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fleet")
def test_list_shows_who_is_there_and_who_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("\t") for line in here(capsys, "worker", "list").out.splitlines()]
    assert [line[:4] for line in lines] == [
        ["web-11-aaaa", "alive", "3", "50"],
        ["web-12-bbbb", "alive", "0", "8"],
        ["web-13-cccc", "draining", "0", "-"],
        ["web-15-eeee", "lost", "0", "-"],
    ]
    assert lines[0][6:] == ["web", "11", "1.0", "emails,calls"]
    everybody = here(capsys, "worker", "list", "--all", "-q").out.split()
    assert everybody == ["web-11-aaaa", "web-12-bbbb", "web-13-cccc", "web-14-dddd", "web-15-eeee"]


@pytest.mark.usefixtures("fleet")
def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(here(capsys, "worker", "list", "--json").out)[0]
    assert first["started_at"] == "1970-01-01T00:00:00.001Z"
    assert (first["worker"], first["queues"], first["slots"], first["pid"]) == (
        "web-11-aaaa",
        ["emails", "calls"],
        50,
        11,
    )


def test_people_see_how_long_ago_a_worker_was_heard_of() -> None:
    """One that was killed is called alive for as long as it may only be late."""
    killed = WorkerBeat("web-11-aaaa", WorkerFacts(("emails",), "web", 11), 1_000, alive=True)
    header, (cells,) = worker_list.listing(13_000).table([killed])
    shown = dict(zip(header, cells, strict=True))
    assert (shown["STATE"], shown["SEEN"]) == ("alive", "12s ago")


def test_list_of_nobody(on_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    at_store(on_store, lambda store: store.tally())
    told = here(capsys, "worker", "list")
    assert (told.code, told.out) == (Exit.DONE, "")


# -- drain and stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["drain", "stop"])
def test_those_named_are_asked(word: str, fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", word, "web-11", "bbbb", "web-11-aaaa", *WHY)
    assert (told.code, told.out) == (Exit.DONE, "web-11-aaaa\nweb-12-bbbb\n")
    assert told.err == f"asked 2 to {word}: web-11-aaaa, web-12-bbbb\n"
    asked = ordered(fleet)
    assert {name: (order.word, order.reason) for name, order in asked.items()} == {
        "web-11-aaaa": (word, "new release"),
        "web-12-bbbb": (word, "new release"),
    }


def test_all_are_those_that_can_hear(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "drain", "--all", "--yes", "--json", *WHY)
    assert told.code == Exit.DONE
    asked = ["web-11-aaaa", "web-12-bbbb", "web-13-cccc"]
    assert json.loads(told.out) == {"dry_run": False, "asked": asked, "ended": []}
    assert list(ordered(fleet)) == asked


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["drain", "--all"], Exit.REFUSED, "3 workers would be asked to drain, and there is no terminal to ask"),
        (["drain", "web-1"], Exit.NOT_FOUND, "'web-1' fits 3 workers: web-11-aaaa, web-12-bbbb, web-13-cccc"),
        (["drain", "web-11", "nobody"], Exit.NOT_FOUND, "no worker 'nobody' was heard of within a day"),
        (["stop", "web-11", "web-14"], Exit.CONFLICT, "web-14-dddd cannot be asked: it stopped already"),
        (["stop", "eeee"], Exit.CONFLICT, "web-15-eeee cannot be asked: it is lost"),
        (["stop"], Exit.USAGE, "name workers, or say --all, and not both"),
        (["stop", "web-11", "--all"], Exit.USAGE, "name workers, or say --all, and not both"),
        (["stop", "web-11", "--wait=soon"], Exit.USAGE, "--wait: 'soon' is not a duration"),
        (["stop", "web-11", "--reason", " "], Exit.USAGE, "reason"),
    ],
)
def test_who_cannot_be_asked_keeps_the_others_from_it(
    words: list[str], code: int, said: str, fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, "worker", *words, *([] if "--reason" in words else WHY))
    assert (told.code, told.out) == (code, "")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert ordered(fleet) == {}


def test_a_reason_is_needed(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "stop", "web-11")
    assert told.code == Exit.USAGE
    assert "--reason" in told.err


def test_a_dry_run_asks_nobody(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "stop", "--all", "--dry-run", *WHY)
    assert told.code == Exit.DONE
    assert told.err.startswith("3 would be asked to stop: web-11-aaaa")
    assert ordered(fleet) == {}


def test_a_wait_that_runs_out_says_who_is_still_there(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "worker", "drain", "web-11", "--wait=0s", *WHY)
    assert (told.code, told.out) == (Exit.STILL_GOING, "web-11-aaaa\n")
    assert list(ordered(fleet)) == ["web-11-aaaa"]


def test_a_wait_ends_when_they_have(
    fleet: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end between two looks."""
    looks: list[float] = []

    async def pause(seconds: float) -> None:
        looks.append(seconds)
        store = await store_from_url(fleet).open()
        await store.beat("web-11-aaaa", WorkerFacts((), stopped=True), 0)
        await store.close()

    monkeypatch.setattr("redrive.cli.worker_end.pause", pause)
    told = here(capsys, "worker", "stop", "web-11", "--wait", *WHY)
    assert (told.code, told.err) == (Exit.DONE, "1 ended: web-11-aaaa\n")
    assert len(looks) == 1


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize(("keys", "code"), [("y\n", Exit.DONE), ("\n", Exit.REFUSED)])
def test_on_a_terminal_all_is_asked_about(keys: str, code: int, tmp_path: Path) -> None:
    told: Told = on_terminal("worker", "drain", "--all", *WHY, cwd=tmp_path, keys=keys)
    assert told.code == code
    assert "Ask 3 workers to drain? [y/N]" in told.out
