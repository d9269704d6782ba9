import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from redrive.core.acts import Act, Replay
from redrive.core.item import NewItem
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import (
    DocumentWrite,
    LeaseRequest,
    NewEntry,
    PutResult,
    Want,
    WorkerFacts,
)
from redrive.errors import NotFound, StoreCorrupt
from redrive.stores.base import Store
from redrive.testing import EncodingProxy, FakeClock, MemoryStore
from redrive.testing._relay import Relay


def test_the_relay_has_every_verb_as_the_protocol_declares_it() -> None:
    names = [name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")]
    assert len(names) > 20
    for name in names:
        ours, theirs = (inspect.signature(getattr(kind, name), eval_str=True) for kind in (Relay, Store))
        assert ours == theirs, name


async def test_values_arrive_equal_but_not_the_same() -> None:
    store = MemoryStore(FakeClock())
    proxy: Store = await EncodingProxy(store).open()
    payload = bytes(range(256))
    await proxy.put([NewItem("a", "q", payload)])
    there = (await store.get("a")).item
    here = (await proxy.get("a")).item
    assert here == there
    assert here is not there
    assert here.payload == payload
    (leased,) = (await proxy.lease(LeaseRequest("w", (Want("q", 1, 10, 3),), "n"))).items
    assert leased == (await store.get("a")).item
    await proxy.close()


async def test_every_kind_of_argument_and_answer_passes() -> None:
    proxy = await EncodingProxy(MemoryStore(FakeClock())).open()
    assert await proxy.document("k", "a") is None
    (document,) = await proxy.write_documents([DocumentWrite("k", "a", b"\x00\xff", expect=0)])
    assert document.body == b"\x00\xff"
    assert await proxy.append((NewEntry("t", b"1"), NewEntry("t", b"2"))) == (1, 2)
    assert await proxy.elect("maintainer", "me", 10) is True
    assert await proxy.elect("maintainer", "you", 10) is False
    await proxy.beat("w", WorkerFacts(("q",)), 10)
    assert (await proxy.workers())[0].facts.queues == ("q",)
    assert await proxy.reclaim("w", ["q"], 10, 10, ids=None, force=True) == ()
    assert (await proxy.find(EVERYTHING)).items == ()
    amended = await proxy.amend(Ids(("x",)), Replay("once", 5), Act("me", "why", "r"), expect=0)
    assert amended.skipped[0].id == "x"
    assert await proxy.tombstone("x") is None
    await proxy.wait(["q"], 0)


async def test_errors_of_the_store_pass_through() -> None:
    proxy = await EncodingProxy(MemoryStore(FakeClock())).open()
    with pytest.raises(NotFound):
        await proxy.get("nobody")


class Liar(MemoryStore):
    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        return PutResult(added=(1,))  # type: ignore[arg-type]  # the lie


async def test_an_answer_that_is_not_what_the_protocol_says_is_refused() -> None:
    proxy = await EncodingProxy(Liar(FakeClock())).open()
    with pytest.raises(StoreCorrupt):
        await proxy.put([])
