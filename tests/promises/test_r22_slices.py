"""R22, SQLite's part: a long reader does not leave a large log behind, and looking never reads for long at once.

How leasing fares with a million waiting is measured by `python -m bench --rows grow-waiting`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.core.select import Match
from redrive.stores.sqlite import SqliteStore, search
from redrive.stores.sqlite.tx import Tx


@pytest.mark.parametrize("oldest", [False, True])
async def test_r22_no_look_reads_more_than_a_slice_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: bool
) -> None:
    """A filter that no index serves is interrupted, and then read slice by slice, with room for others between."""
    monkeypatch.setattr(search, "PATIENCE", -1.0)
    monkeypatch.setattr(search, "SLICE", 100)
    seen: list[int] = []
    rows = search.Search._rows  # noqa: SLF001 - the one place that reads
    between = "seq > ? and seq <= ?" if oldest else "seq < ? and seq >= ?"

    def watched(self: search.Search[str], tx: Tx, end: search.Place) -> list[object]:
        bounds = (self._begin[1], end[1])
        (count,) = tx.execute(f"select count(*) from item where {between}", bounds).fetchone()
        seen.append(count)
        return list(rows(self, tx, end))

    monkeypatch.setattr(search.Search, "_rows", watched)
    store = await SqliteStore(tmp_path / "redrive.db").open()
    try:
        await store.put([NewItem(f"i-{n}", "q", b"{}") for n in range(1_000)])
        found = await store.find(Match("id", "glob", "*-99?9*"), 100, oldest=oldest)
    finally:
        await store.close()
    assert [item.id for item in found.items] == []
    # The first try was interrupted before it could be counted.
    assert (len(seen), max(seen)) == (11, 100)
