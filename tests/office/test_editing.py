"""Edits through the app: the body of a door, what is refused, and a damaged payload made whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.doors import Door
from redrive.errors import ConfigError, Conflict, NotFound, PayloadTooLarge
from redrive.office import doors


async def test_edit_of_a_door_leaves_its_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_body(payload: bytes, body: bytes) -> bytes:
        return payload.split(b"|")[0] + b"|" + body

    door = Door("boxes", body=lambda payload: payload.split(b"|")[1], with_body=with_body)
    monkeypatch.setattr(doors, "loaded", lambda name: door if name == "boxes" else None)
    async with Redrive("memory:", log=False) as app:
        app.queue("q")
        await doors.mark(app._parts.store, "q", "boxes")  # noqa: SLF001 - as the package of a door does
        item_id = await app.enqueue("q", b"ann|1", delay="1h")
        assert (await app.edit(item_id, [2], reason="x")).payload == b"ann|[2]"
        assert (await app.edit(item_id, b"bob|3", raw=True, revision=1, reason="x")).payload == b"bob|3"
        history = await doors.show_body(app._parts.store, await app.letters.get(item_id))  # noqa: SLF001
        assert (history.item.payload, [one.payload for one in history.revisions]) == (b"3", [b"1", b"[2]"])


async def test_edit_raises_what_is_wrong() -> None:
    async with Redrive("memory:", log=False, max_payload=20) as app:
        app.queue("q")
        item_id = await app.enqueue("q", "x", delay="1h")
        with pytest.raises(NotFound, match="no item"):
            await app.edit("nowhere-at-all", 1, reason="x")
        with pytest.raises(PayloadTooLarge, match="the limit is 20"):
            await app.edit(item_id, "x" * 20, reason="x")
        with pytest.raises(ConfigError, match="revision"):
            await app.edit(item_id, 1, revision=-1, reason="x")
        with pytest.raises(Conflict, match="it is at revision 0, not 3"):
            await app.edit(item_id, 1, revision=3, reason="x")
        with pytest.raises(ConfigError, match="label"):
            await app.park(item_id, 7, reason="x")  # type: ignore[arg-type] # refused
        await app.cancel(item_id, reason="x")
        with pytest.raises(Conflict, match="it is cancelled; only a letter or a waiting item can be edited"):
            await app.edit(item_id, 1, reason="x")


async def test_a_repeated_enqueue_of_an_edited_item_is_the_same() -> None:
    async with Redrive("memory:", log=False) as app:
        app.queue("q")
        await app.enqueue("q", "x", id="mine", delay="1h")
        await app.edit("mine", "y", reason="x")
        assert (await app.enqueue("q", "x", id="mine")).duplicate
        with pytest.raises(Conflict):
            await app.enqueue("q", "y", id="mine")


async def test_a_repeated_edit_adds_no_revision() -> None:
    """As after an answer that was lost, with the revision that was meant, and though another edit came since."""
    async with Redrive("memory:", log=False) as app:
        app.queue("q")
        await app.enqueue("q", "x", id="mine", delay="1h")
        for _ in range(2):
            edited = await app.edit("mine", "y", reason="x", revision=0, request_id="t-1")
            assert (edited.payload, edited.revision) == (b'"y"', 1)
        await app.edit("mine", "z", reason="x")
        assert (await app.edit("mine", "y", reason="x", revision=0, request_id="t-1")).revision == 2
        await app.park("mine", "schema", reason="x", request_id="t-2")
        assert (await app.edit("mine", "v", reason="x", request_id="t-2")).revision == 3
        for raw, payload in ((False, "v"), (True, b'"v"')):
            assert (await app.edit("mine", payload, raw=raw, reason="x")).revision == 3
        with pytest.raises(Conflict, match="it is at revision 3, not 2"):
            await app.edit("mine", "v", revision=2, reason="x")


@pytest.mark.slow
async def test_edit_makes_a_damaged_payload_whole(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    async with Redrive(f"sqlite:///{path}", log=False) as app:
        app.queue("q")
        item_id = await app.enqueue("q", "whole", delay="1h")
    with sqlite3.connect(path) as connection:
        connection.execute("update payload set body = x'00ff'")
    connection.close()
    async with Redrive(f"sqlite:///{path}", log=False) as app:
        assert (await app.get(item_id)).flaw
        edited = await app.edit(item_id, "whole", reason="from the backup")
        assert (edited.flaw, edited.payload) == ("", b'"whole"')
        (first,) = (await app.letters.get(item_id)).revisions
        assert (first.payload, "checksum" in first.flaw) == (b"\x00\xff", True)
        assert [finding.kind for finding in (await app.check()).findings] == ["revisions"]
