"""Tags, moves, trash and letters from elsewhere on SQLite: plans, and what check finds."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Discard,
    Replay,
    Tag,
)
from redrive.core.item import NewItem
from redrive.core.select import And, Ids, Match
from redrive.core.verbs import QueueChange, Swept
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.checkup import can_repair
from redrive.stores.sqlite.compile import compiled
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, asking, lane, new
from tests.stores.upkeep_kit import died, execute

BY = Act("ops", "why not", "r-10")
TEXT = b'{"text": "%s"}' % (b"all work and no play " * 10_000)


async def letters(store: SqliteStore, *names: str) -> None:
    await store.put([new(name) for name in names])
    items = (await store.lease(asking(len(names)))).items
    await store.settle([died(item) for item in items])


# --- plans ---


@pytest.mark.parametrize("letters_only", [False, True])
async def test_tags_are_found_by_an_index(opened: Open, path: Path, letters_only: bool) -> None:
    await (await opened()).close()
    tag = Match("tag", "=", "x")
    where, values = compiled(And((Match("state", "=", "dead"), tag)) if letters_only else tag, 0, letters=letters_only)
    sql = load("sqlite", "find")["letters" if letters_only else "items"].replace("{where}", where)
    with closing(sqlite3.connect(path)) as connection:
        rest = (0,) * (sql.count("?") - len(values))
        plan = [row[3] for row in connection.execute(f"explain query plan {sql}", (*values, *rest))]
    assert any("USING PRIMARY KEY (tag=?" in step for step in plan), plan


async def test_retention_of_the_trash_looks_at_letters_only(opened: Open) -> None:
    """A store that keeps all its finished items is not gone through for the sake of one letter."""
    store = await opened(clock=FakeClock())
    await letters(store, "open", "trash")
    await store.put([new(f"i-{n}") for n in range(20)])
    assert await store.sweep(5, BY) == Swept()
    await store.amend(Ids(("trash",)), Discard(), BY)
    seen: list[str] = []

    def trace(tx: Tx) -> None:
        assert isinstance(tx.connection, sqlite3.Connection)
        tx.connection.set_trace_callback(seen.append)

    await lane(store).submit(trace)
    assert await store.sweep(5, BY) == Swept()
    assert any("from letter l cross join item i" in statement for statement in seen)
    assert not any("from item i left join letter" in statement for statement in seen)
    await store.configure("q", QueueChange(keep_trash=0, keep=0))
    swept = await store.sweep(5, BY)
    assert (swept.pruned, swept.next is not None) == (1, True)


# --- large ones ---


async def test_large_letters_from_elsewhere_are_packed(opened: Open, path: Path, tmp_path: Path) -> None:
    first, second = await opened(), await opened(tmp_path / "second.db")
    await first.put([NewItem("large", "q", TEXT), new("small")])
    await first.settle([died(item) for item in (await first.lease(asking())).items])
    told = [await first.get(name) for name in ("large", "small")]
    assert (await second.take_in(told, BY)).added == ("large", "small")
    assert (await second.get("large")).item.payload == TEXT
    assert (await second.check()).findings == ()
    await second.amend(Ids(("large",)), Replay(), structs.replace(BY, request_id="r-11"))
    assert [item.payload for item in (await second.lease(asking())).items] == [TEXT]
    with closing(sqlite3.connect(tmp_path / "second.db")) as connection:
        sizes = dict(connection.execute("select i.id, length(p.body) from payload p join item i on i.seq = p.seq"))
    assert sizes["small"] == 2
    assert sizes["large"] < len(TEXT) // 10


# --- what check finds ---


HARM = {
    "a tag of nobody": ("insert into tag values ('x', 999)", "#999"),
    "a tag its item does not know of": ("update item set ties = 0 where id = 'a'", "a"),
    "tags that were lost": ("delete from tag", "a"),
}


@pytest.mark.parametrize("harm", HARM)
async def test_check_finds_tags_that_are_wrong_and_repair_mends_them(opened: Open, path: Path, harm: str) -> None:
    store = await opened()
    await letters(store, "a", "b")
    await store.amend(Ids(("a",)), Tag(("x", "y")), BY)
    assert (await store.check()).findings == ()
    await store.close()
    statement, example = HARM[harm]
    execute(path, statement)
    store = await opened()
    found = await store.check(quick=True)
    (finding,) = found.findings
    assert (finding.kind, finding.examples[0]) == ("tags", example)
    assert can_repair(found)
    assert await store.upkeep().repair() == found.findings
    assert (await store.check()).findings == ()
    assert (await store.get("a")).item.tags == (() if harm == "tags that were lost" else ("x", "y"))
