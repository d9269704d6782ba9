"""R30: hostile payloads have one verdict on every store, and what is accepted comes back byte for byte, for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
from base64 import b64decode
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Item, Policy, Redrive, cli, never
from redrive.cli.letter import page
from redrive.cli.output import as_json
from redrive.cli.views import history_object
from redrive.core import codec
from redrive.core.item import History
from redrive.core.states import State
from redrive.errors import PayloadError
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import sha256
from tests.support.folders import quick_folder
from tests.support.hostile import DOCUMENTS, NOT_GIVEN, Document
from tests.support.stores import STORES, StoreUrl, fresh_store

KINDS = (*STORES, "apsw")
QUEUES = ("bytes", "values")


@contextlib.contextmanager
def fresh(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh store; `apsw` is SQLite by another library."""
    with quick_folder(folder) as place, fresh_store("sqlite" if kind == "apsw" else kind, place) as url:
        yield f"{url}?binding={'apsw' if kind == 'apsw' else 'stdlib'}" if url.startswith("sqlite:") else url


class Post:
    """An app with a queue whose handler wants the bytes, and fails until it is mended, and one that wants a value."""

    def __init__(self, store: Store, *, mended: bool = False) -> None:
        self.app = Redrive(store, log=False, actor="r30")
        self.seen: dict[str, bytes] = {}
        self.values: dict[str, Any] = {}

        @self.app.handler("bytes", policy=Policy(never()))
        async def keep(item: Item) -> bytes:
            self.seen[item.id] = item.payload
            if not mended:
                raise ValueError("not yet")
            return item.payload

        @self.app.handler("values", policy=Policy(never()))
        async def take(my_item: Item, value: Any = NOT_GIVEN, **rest: Any) -> None:
            self.seen[my_item.id] = my_item.payload
            self.values[my_item.id] = rest if value is NOT_GIVEN else value

    async def verdict(self, given: Any, item_id: str) -> type[PayloadError] | None:
        try:
            for queue in QUEUES:
                await self.app.enqueue(queue, given, id=f"{item_id}-{queue}")
        except PayloadError as error:
            return type(error) if error.hint else None
        return None

    async def payloads(self, ids: Iterable[str]) -> dict[str, bytes]:
        return {item_id: (await self.app.get(item_id)).payload for item_id in ids}


def named(document: Document) -> str:
    return f"doc-{DOCUMENTS.index(document)}"


ACCEPTED = [document for document in DOCUMENTS if isinstance(document.verdict, str)]
BYTES = [f"{named(document)}-bytes" for document in ACCEPTED]
ALL = [*BYTES, *(f"{named(document)}-values" for document in ACCEPTED)]


def test_r30_there_are_sixty() -> None:
    assert len({document.name for document in DOCUMENTS}) == len(DOCUMENTS) == 60
    assert Counter(str(document.verdict) for document in DOCUMENTS).keys() == {
        "taken",
        "kept",
        "<class 'redrive.errors.PayloadNotSerialisable'>",
        "<class 'redrive.errors.PayloadTooLarge'>",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_r30_one_verdict_and_the_same_bytes_for_ever(kind: str, tmp_path: Path) -> None:
    with fresh(kind, tmp_path) as url:
        store = store_from_url(url)
        first = Post(store)
        async with first.app as app:
            put = await accepted(first)
            await app.run(until_idle=True)
            judge(first, put)
            await check_letters(app, put)
        again = Post(store if kind == "memory" else store_from_url(url), mended=True)
        async with again.app as app:
            assert await again.payloads(ALL) == put
            await replayed(again, put)
            if url.startswith("sqlite:"):
                await app.backup(tmp_path / "copy.db")
                await check_copy(Post(store_from_url(f"sqlite:///{tmp_path}/copy.db")), put)
            tombstones = await app.prune("state:done", reason="r30", limit=1_000)
            for tombstone in tombstones:
                assert tombstone.payload_sha256 == sha256(put[tombstone.id])
            assert {tombstone.id for tombstone in tombstones} >= set(BYTES)


async def accepted(post: Post) -> dict[str, bytes]:
    """Everything offered; what was accepted, as it came back at once."""
    for document in DOCUMENTS:
        error = await post.verdict(document.given, named(document))
        assert (error or document.verdict) == document.verdict, document.name
        assert (error is None) == isinstance(document.verdict, str), document.name
    assert {row.queue: row.ready for row in (await post.app.tally()).queues} == dict.fromkeys(QUEUES, len(ACCEPTED))
    put = await post.payloads(ALL)
    for document in ACCEPTED:
        body = put[f"{named(document)}-bytes"]
        assert body == put[f"{named(document)}-values"]
        if document.raw is not None:
            assert body == document.raw, document.name
        else:
            assert repr(json.loads(body) or {}) == repr(document.expected or {}), document.name
    return put


def judge(post: Post, put: dict[str, bytes]) -> None:
    """What the handlers saw: the bytes that were put, and the values that the table says."""
    taken = {f"{named(document)}-values": document for document in ACCEPTED if document.verdict == "taken"}
    assert post.values.keys() == taken.keys()
    for item_id, document in taken.items():
        assert repr(post.values[item_id]) == repr(document.expected), document.name
    assert post.seen == {item_id: put[item_id] for item_id in (*BYTES, *taken)}


async def check_letters(app: Redrive, put: dict[str, bytes]) -> None:
    letters = (await app.letters.find(limit=1_000)).items
    reasons = Counter(item.letter.reason for item in letters if item.letter is not None)
    kept = sum(document.verdict == "kept" for document in ACCEPTED)
    assert reasons == {"no_retry": len(ACCEPTED), "payload": kept}
    for item in letters:
        assert item.payload == put[item.id]
        assert (await app.letters.get(item.id)).item == item


async def replayed(post: Post, put: dict[str, bytes]) -> None:
    """Every letter again: the mended handler gives its bytes back as its result."""
    amended = await post.app.letters.replay("disposition:open", reason="mended")
    assert not amended.skipped
    await post.app.run(until_idle=True)
    for item_id in BYTES:
        item = await post.app.get(item_id)
        assert (item.state, item.payload, item.result) == (State.DONE, put[item_id], put[item_id])
        assert post.seen[item_id] == put[item_id]
    assert {item.id for item in (await post.app.letters.find("reason:payload", limit=1_000)).items} == {
        f"{named(document)}-values" for document in ACCEPTED if document.verdict == "kept"
    }


async def check_copy(copy: Post, put: dict[str, bytes]) -> None:
    async with copy.app as app:
        assert await copy.payloads(ALL) == put
        assert [(await app.get(item_id)).result for item_id in BYTES] == [put[item_id] for item_id in BYTES]


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_r30_every_letter_can_be_shown(store_url: StoreUrl, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    url = store_url("sqlite")
    put = asyncio.run(letters_in(url))
    for document in ACCEPTED:
        item_id = f"{named(document)}-bytes"
        text = shown(capsysbinary, url, item_id)
        assert all(char.isprintable() or char == "\n" for char in text), document.name
        assert f"payload, {len(put[item_id]):,} bytes" in text
        assert len(text) < 20_000
        letter = json.loads(shown(capsysbinary, url, item_id, "--json"))
        assert letter["payload_bytes"] == len(put[item_id])
        if document.verdict == "kept":
            assert letter["payload_encoding"] == "base64"
            assert b64decode(letter["payload"], validate=True) == put[item_id]
        else:
            assert letter["payload_encoding"] == "json"
            assert repr(letter["payload"] or {}) == repr(document.expected or {}), document.name


@pytest.mark.parametrize("form", [(b"[", b"", b"]"), (b'{"a":', b"1", b"}"), (b'[{"a":', b"[]", b"}]")], ids=range(3))
def test_r30_a_letter_on_the_edge_of_recursion_can_be_shown(form: tuple[bytes, bytes, bytes]) -> None:
    """Python reads JSON a little deeper than it writes it."""
    start, middle, end = form

    def body(depth: int) -> bytes:
        return start * depth + middle + end * depth

    deepest = bisect(range(1, 50_000), x=False, key=lambda depth: not is_json(body(depth)))
    for depth in (5, 250, *range(deepest - 4, deepest + 3)):
        history = History(Item("i", "q", body(depth), 1, State.READY, 0, 0, 0))
        assert any(line.startswith("payload, ") for line in page(history, 0))
        letter = json.loads(as_json(history_object(history)))
        if depth <= 250:
            assert json.dumps(letter["payload"], separators=(",", ":")).encode() == body(depth)
        else:
            assert b64decode(letter["payload"]) == body(depth)


def is_json(body: bytes) -> bool:
    try:
        codec.load_payload(body)
    except PayloadError:
        return False
    return True


async def letters_in(url: str) -> dict[str, bytes]:
    """A letter of every accepted document."""
    post = Post(store_from_url(url))
    async with post.app as app:
        put = await accepted(post)
        await app.run(until_idle=True)
    return put


def shown(capture: pytest.CaptureFixture[bytes], url: str, *args: str) -> str:
    capture.readouterr()
    assert cli.run(("letters", "show", *args, "--store", url)) == 0
    told = capture.readouterr()
    assert told.err == b""
    return told.out.decode("utf-8", "strict")
