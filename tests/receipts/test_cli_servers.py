"""`redrive receipts …` on the other stores: once through all of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from redrive.receipts import ReceiptClient
from tests.receipts.test_dead_letters import receipt
from tests.receipts.test_json import entry
from tests.support.broker import Broker, rpc_error
from tests.support.cli import here, on_store

__all__ = ["on_store"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("on_store", ["postgres", "redis"], indirect=True),
]


def test_import_list_recover_and_export(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, on_store: str, broker: Broker
) -> None:
    (tmp_path / "receipts.json").write_text(json.dumps([entry("a"), entry("b"), entry("c")]))
    told = here(capsys, "receipts", "import", "receipts.json")
    assert (told.code, told.err) == (Exit.DONE, "took in 3\n")
    ids = told.out.split()
    assert sorted(here(capsys, "receipts", "list", "-q").out.split()) == sorted(ids)
    broker.rule(lambda call, _: rpc_error("QUOTA_EXCEEDED") if call.arguments["lease_id"] == "b" else None)
    told = here(capsys, "receipts", "recover", "--endpoint", broker.url)
    assert (told.code, len(told.out.split())) == (Exit.PARTLY, 2)
    assert told.err.endswith("delivered 2, kept 1\n")
    (left,) = json.loads(here(capsys, "receipts", "export").out)
    assert left == entry("b")


async def _leave(url: str) -> list[str]:
    async with ReceiptClient("http://127.0.0.1:9", url, work=False, log=False) as client:
        return [await client.submit(receipt("a", "running", summary=word)) for word in ("half", "nearly")]


def test_what_waits_is_told_and_delivered(capsys: pytest.CaptureFixture[str], on_store: str, broker: Broker) -> None:
    """The second one is held by the first, of the same lease."""
    ids = asyncio.run(_leave(on_store))
    assert here(capsys, "receipts", "list").err.startswith("2 receipts wait to be delivered: ")
    told = here(capsys, "receipts", "send", "--waiting", "--endpoint", broker.url)
    assert (told.code, [line.split("\t")[0] for line in told.out.splitlines()]) == (Exit.DONE, ids)
    assert [call.key for call in broker.calls] == ids
    assert json.loads(here(capsys, "receipts", "list", "--json").out)["waiting"] == 0
