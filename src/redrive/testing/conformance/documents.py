"""Documents: by kind and key, compare-and-set on a version, all or none."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core.verbs import Document, DocumentWrite
from redrive.errors import Conflict
from redrive.testing.conformance.kit import DURABLE, World


async def test_documents_are_written_and_read(world: World) -> None:
    assert await world.store.document("plan", "a") is None
    body = b"\x00 \xff any bytes"
    expected = Document("plan", "a", 1, body)
    assert await world.store.write_documents([DocumentWrite("plan", "a", body)]) == (expected,)
    assert await world.store.document("plan", "a") == expected
    assert await (await world.another()).document("plan", "a") == expected


async def test_documents_count_their_versions(world: World) -> None:
    for version in (1, 2, 3):
        (document,) = await world.store.write_documents([DocumentWrite("plan", "a", b"%d" % version)])
        assert (document.version, document.body) == (version, b"%d" % version)


async def test_documents_compare_and_set(world: World) -> None:
    await world.store.write_documents([DocumentWrite("plan", "a", b"1", expect=0)])
    await world.store.write_documents([DocumentWrite("plan", "a", b"2", expect=1)])
    for stale in (0, 1, 3):
        with pytest.raises(Conflict):
            await world.store.write_documents([DocumentWrite("plan", "a", b"x", expect=stale)])
    assert await world.store.document("plan", "a") == Document("plan", "a", 2, b"2")


async def test_documents_are_written_all_or_none(world: World) -> None:
    await world.store.write_documents([DocumentWrite("plan", "a", b"1")])
    writes = [
        DocumentWrite("plan", "b", b"1"),
        DocumentWrite("plan", "a", None),
        DocumentWrite("plan", "c", b"1", expect=4),
    ]
    with pytest.raises(Conflict):
        await world.store.write_documents(writes)
    assert await world.store.documents("plan") == (Document("plan", "a", 1, b"1"),)


async def test_documents_are_deleted(world: World) -> None:
    await world.store.write_documents([DocumentWrite("plan", "a", b"1"), DocumentWrite("plan", "b", b"1")])
    assert await world.store.write_documents([DocumentWrite("plan", "a", None, expect=1)]) == ()
    assert await world.store.document("plan", "a") is None
    assert [document.key for document in await world.store.documents("plan")] == ["b"]
    assert await world.store.write_documents([DocumentWrite("plan", "never was", None)]) == ()


async def test_documents_never_repeat_a_version(world: World) -> None:
    """Else a writer that saw the deleted document could overwrite its successor."""
    write = DocumentWrite("plan", "a", b"1")
    await world.store.write_documents([write])
    (old,) = await world.store.write_documents([write])
    await world.store.write_documents([DocumentWrite("plan", "a", None)])
    (renewed,) = await world.store.write_documents([DocumentWrite("plan", "a", b"2", expect=0)])
    assert renewed.version > old.version
    with pytest.raises(Conflict):
        await world.store.write_documents([DocumentWrite("plan", "a", b"3", expect=old.version)])


async def test_documents_come_by_kind_ordered_by_key(world: World) -> None:
    keys = ["b", "a", "B", "a b", "☃", "1"]
    await world.store.write_documents([DocumentWrite("plan", key, key.encode()) for key in keys])
    await world.store.write_documents([DocumentWrite("rule", "a", b"other")])
    found = await world.store.documents("plan")
    assert [document.key for document in found] == sorted(keys)
    assert all(document.body == document.key.encode() for document in found)
    assert await world.store.documents("nothing") == ()


async def test_documents_written_together_are_returned_as_they_are(world: World) -> None:
    await world.store.write_documents([DocumentWrite("plan", "a", b"1")])
    written = await world.store.write_documents(
        [DocumentWrite("plan", "b", b"1"), DocumentWrite("plan", "a", b"2", expect=1), DocumentWrite("plan", "c", None)]
    )
    assert set(written) == {Document("plan", "a", 2, b"2"), Document("plan", "b", 1, b"1")}


async def test_documents_of_racing_writers_have_one_winner(world: World) -> None:
    other = await world.another()
    await world.store.write_documents([DocumentWrite("plan", "a", b"0")])
    calls = [
        handle.write_documents([DocumentWrite("plan", "a", b"%d" % turn, expect=1)])
        for turn, handle in enumerate([world.store, other] * 4)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    won = [result for result in results if not isinstance(result, BaseException)]
    assert [type(result) for result in results if isinstance(result, BaseException)] == [Conflict] * 7
    assert await world.store.document("plan", "a") == won[0][0]


async def test_documents_survive_reopening(world: World) -> None:
    world.needs(DURABLE)
    await world.store.write_documents([DocumentWrite("plan", "a", b"1"), DocumentWrite("plan", "b", b"1")])
    await world.store.write_documents([DocumentWrite("plan", "b", None)])
    await world.store.close()
    reopened = await world.another()
    assert await reopened.documents("plan") == (Document("plan", "a", 1, b"1"),)
    (again,) = await reopened.write_documents([DocumentWrite("plan", "b", b"2")])
    assert again.version == 2
