"""Encrypted queues through the app: enqueue, work, wait, letters, export and import."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from redrive import Dead, Keyring, Redrive
from redrive.core.states import State
from redrive.errors import BadFilter, BadImport, ConfigError, DecryptionFailed, EncryptionKeyMissing, UnknownQueue
from redrive.office.records import line_of
from redrive.stores.memory import MemoryStore
from tests.support.lab import Lab

KEYS = Keyring({"k1": bytes(range(32))}, current="k1")
OTHERS = Keyring({"k9": bytes(range(9, 41))}, current="k9")
BOTH = Keyring({"k1": bytes(range(32)), "k9": bytes(range(9, 41))}, current="k9")
WRONG = Keyring({"k1": bytes(32)}, current="k1")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def app(store: MemoryStore) -> AsyncIterator[Redrive]:
    app = Redrive(store, encryption=KEYS, log=False)
    app.queue("cards", encrypt=True)

    @app.handler("cards")
    async def charge(number: str) -> dict[str, str]:
        if number == "bad":
            raise Dead("declined")
        return {"charged": number}

    async with app:
        yield app


async def test_handlers_and_callers_see_what_was_enqueued_and_returned(app: Redrive) -> None:
    item_id = await app.enqueue("cards", {"number": "4111"})
    await app.run(until_idle=True)
    assert await app.wait(item_id) == {"charged": "4111"}
    assert (await app.get(item_id)).payload == b'{"number":"4111"}'


async def test_an_unknown_queue_is_not_encrypted_anew(app: Redrive) -> None:
    with pytest.raises(UnknownQueue, match=r"'card'.*cards"):
        await app.reencrypt("card")


async def test_a_missing_key_is_named_and_is_no_damage(app: Redrive, store: MemoryStore) -> None:
    done, letter = await app.enqueue("cards", {"number": "4111"}), await app.enqueue("cards", {"number": "bad"})
    await app.run(until_idle=True)
    for ring in (None, OTHERS):
        store.use_keys(ring)
        with pytest.raises(DecryptionFailed, match=rf"the result of item {done} is encrypted with key 'k1'") as caught:
            await app.wait(done)
        assert caught.value.key == "k1"
        with pytest.raises(DecryptionFailed) as caught:
            await app.letters.payload(letter)
        assert str(caught.value).count("(give ") == 1
        kept = (await app.letters.replay(letter, transform=lambda payload: payload, reason="x")).kept[0]
        assert (kept.code, "damage" in kept.reason, "'k1'" in kept.reason) == ("encrypted", False, True)


async def test_a_worker_without_keys_does_not_start(app: Redrive, store: MemoryStore) -> None:
    item_id = await app.enqueue("cards", {"number": "4111"})
    store.use_keys(None)
    with pytest.raises(EncryptionKeyMissing, match="queue 'cards' is encrypted"):
        await app.run(until_idle=True)
    with pytest.raises(EncryptionKeyMissing, match="nothing was stored"):
        await app.enqueue("cards", {"number": "4111"})
    with pytest.raises(EncryptionKeyMissing, match="nothing was stored"):
        await app.enqueue("cards", {"number": "4111"}, id=item_id)
    assert (await app.get(item_id)).state is State.READY


async def test_an_item_is_not_run_by_a_process_without_keys(app: Redrive, store: MemoryStore) -> None:
    item_id = await app.enqueue("cards", {"number": "4111"})
    store.use_keys(None)
    with pytest.raises(
        EncryptionKeyMissing, match=r"queue 'cards': .* with key 'k1', which this process does not have"
    ):
        await app.run_item(item_id)
    assert ((await app.get(item_id)).state, (await app.get(item_id)).attempt) == (State.READY, 0)


async def test_a_worker_without_keys_stops_at_an_encrypted_member(store: MemoryStore) -> None:
    app = Redrive(store, encryption=KEYS, log=False)
    ran: list[str] = []

    @app.handler("vault:*")
    async def keep(number: str) -> None:
        ran.append(number)

    async with app:
        await app.configure("vault:a", encrypt=True, reason="cards")
        secret = await app.enqueue("vault:a", {"number": "4111"})
        plain = await app.enqueue("vault:b", {"number": "7"})
        store.use_keys(None)
        with pytest.raises(EncryptionKeyMissing, match="queue 'vault:a' is encrypted"):
            await app.run(until_idle=True)
        found = await app.get(secret)
        assert (found.state, found.attempt, found.crashes, ran) == (State.READY, 0, 0, ["7"])
        assert (await app.get(plain)).state is State.DONE


async def test_a_queue_that_is_encrypted_meanwhile_costs_others_nothing(store: MemoryStore) -> None:
    app = Redrive(store, log=False)
    encrypted, ran = asyncio.Event(), []

    @app.handler("sec")
    async def secret() -> str:
        await app.configure("sec", encrypt=True, reason="cards")
        encrypted.set()
        return "4111"

    @app.handler("other")
    async def other() -> str:
        await encrypted.wait()
        ran.append("other")
        return "done"

    async with app:
        item_id, *others = [await app.enqueue(queue) for queue in ("sec", "other", "other")]
        with pytest.raises(EncryptionKeyMissing, match="queue 'sec' is encrypted"):
            await app.run(until_idle=True)
        found = await app.get(item_id)
        assert (found.state, found.attempt, found.errors, found.crashes) == (State.READY, 0, 0, 0)
        assert [(await app.get(one)).result for one in others] == [b'"done"'] * 2
        assert ran == ["other"] * 2


async def test_items_whose_key_a_worker_lacks_wait_for_one_that_has_it(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = await lab.app(), []

    @app.handler("cards", concurrency=1)
    async def charge(number: str) -> None:
        ran.append(number)

    lab.store.use_keys(KEYS)
    await app.configure("cards", encrypt=True, reason="cards")
    old = [await app.enqueue("cards", {"number": f"old {number}"}) for number in range(60)]
    lab.store.use_keys(OTHERS)
    await app.enqueue("cards", {"number": "new"})
    async with lab.working(app):
        await lab.pass_time("1s")
        assert ran == ["new"]
        await lab.pass_time("100s")
        asked = lab.clock.verbs
        await lab.pass_time("20s")
        assert lab.clock.verbs - asked < 150, "the worker asks again and again for what it cannot read"
        assert [(await lab.item(each)).deliveries for each in old] == [5] * 60
        told = await app.explain(old[0])
        assert (told.why[0].kind, told.next) == ("missing_key", "it runs when a worker that has the key leases it")
        assert "it does not have encryption key 'k1'" in told.summary
        (problem,) = (await app.health()).problems
        assert (problem.kind, problem.what) == ("missing_key", "cards")
        assert "encrypted with key 'k1', which worker " in problem.text
    await lab.drain(app, limit="10s")
    for item_id in old:
        found = await lab.item(item_id)
        assert (found.state, found.attempt, found.errors, found.crashes) == (State.READY, 0, 0, 0)
    assert len([record for record in caplog.records if "encryption key 'k1'" in record.getMessage()]) == 1
    lab.store.use_keys(BOTH)
    async with lab.working(app):
        await lab.pass_time("1m")
    assert (ran[0], len(ran), len(set(ran))) == ("new", 61, 61)


async def test_an_item_whose_key_is_missing_is_neither_run_nor_edited(app: Redrive, store: MemoryStore) -> None:
    item_id = await app.enqueue("cards", {"number": "4111"}, delay="1h")
    before = await app.history(item_id)
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: app.run_item(item_id),
        lambda: app.edit(item_id, {"number": "4222"}, reason="typo"),
        lambda: app.edit(item_id, {"number": "4222"}, reason="typo", raw=True),
    )
    for ring in (OTHERS, None):
        store.use_keys(ring)
        for call in calls:
            with pytest.raises(EncryptionKeyMissing, match=r"queue 'cards': .* with key 'k1'") as caught:
                await call()
            assert (caught.value.queue, caught.value.key) == ("cards", "k1")
    store.use_keys(BOTH)
    assert await app.history(item_id) == before
    assert (await app.edit(item_id, {"number": "4222"}, reason="typo")).revision == 1
    await app.run_item(item_id)
    assert await app.wait(item_id) == {"charged": "4222"}


@pytest.mark.parametrize(
    ("ring", "why"),
    [(OTHERS, "which this process does not have"), (WRONG, "does not decrypt"), (None, "which this process does not")],
    ids=["missing", "wrong", "none"],
)
async def test_the_payload_of_a_letter_is_never_given_encrypted(
    app: Redrive, store: MemoryStore, ring: Keyring | None, why: str
) -> None:
    item_id = await app.enqueue("cards", {"number": "bad"})
    await app.run(until_idle=True)
    assert await app.letters.payload(item_id) == {"number": "bad"}
    store.use_keys(ring)
    with pytest.raises(DecryptionFailed, match=f"letter {item_id} of queue 'cards': .*{why}") as caught:
        await app.letters.payload(item_id)
    assert (caught.value.key, (await app.letters.get(item_id)).item.sealed) == ("k1", "k1")


async def test_an_app_with_another_key_under_a_known_id_does_not_open(app: Redrive, store: MemoryStore) -> None:
    await app.enqueue("cards", {"number": "4111"})
    other = Redrive(store, encryption=Keyring({"k1": bytes(32)}, current="k1"), log=False)
    with pytest.raises(ConfigError, match="key 'k1' is not the key that this store knows under that id"):
        await other.open()


def _nightly(app: Redrive) -> None:
    app.schedule("nightly", "cards", {"number": "4111"}, every="1h")


async def _kept(store: MemoryStore) -> bytes:
    (document,) = await store.documents("schedule")
    return base64.b64decode(json.loads(document.body)["schedule"]["payload"])


async def test_the_payload_of_a_schedule_is_stored_encrypted(app: Redrive, store: MemoryStore) -> None:
    _nightly(app)
    (view,) = await app.schedules.list()
    assert (view.schedule.payload, view.schedule.sealed) == (b'{"number":"4111"}', "")
    assert b"4111" not in await _kept(store)
    item_id = await app.schedules.run("nightly", reason="now")
    assert (await app.get(item_id)).payload == b'{"number":"4111"}'
    paused = await app.schedules.pause("nightly", reason="a while")
    assert (paused.schedule.payload, b"4111" in await _kept(store)) == (b'{"number":"4111"}', False)
    store.use_keys(Keyring({"k1": bytes(range(32)), "k2": bytes(32)}, current="k2"))
    assert {one.key: one.bodies for one in (await app.reencrypt()).keys} == {"k2": 2}
    store.use_keys(None)
    (view,) = await app.schedules.list()
    assert (view.schedule.sealed, b"4111" in view.schedule.payload) == ("k2", False)
    with pytest.raises(EncryptionKeyMissing):
        await app.schedules.run("nightly", reason="now")
    other = Redrive(store, log=False)
    other.queue("cards")
    _nightly(other)
    with pytest.raises(EncryptionKeyMissing, match="queue 'cards' is encrypted"):
        await other.open()


async def test_an_export_stays_encrypted_unless_it_is_to_decrypt(app: Redrive, store: MemoryStore) -> None:
    item_id = await app.enqueue("cards", {"number": "bad"})
    await app.run(until_idle=True)
    sealed = None
    for attempts in (False, True):
        (sealed,) = [record async for record in app.letters.export(attempts=attempts)]
        (clear,) = [record async for record in app.letters.export(attempts=attempts, decrypt=True)]
        assert (sealed.payload_key, sealed.payload_flaw, sealed.payload_encoding) == ("k1", None, "base64")
        assert b"number" not in line_of(sealed)
        assert (clear.payload_key, json.loads(bytes(clear.payload))) == (None, {"number": "bad"})
    assert sealed is not None
    async with Redrive("memory:", encryption=KEYS, log=False) as elsewhere:
        await elsewhere.letters.import_([sealed], reason="moved")
        assert (await elsewhere.letters.get(item_id)).item.payload == b'{"number":"bad"}'
        bent = json.loads(line_of(sealed)) | {"id": "other", "payload_key": "k2"}
        with pytest.raises(BadImport, match="it is not encrypted with key 'k2'"):
            await elsewhere.letters.import_([bent], reason="moved")
    store.use_keys(None)
    with pytest.raises(DecryptionFailed, match=f"letter {item_id}: encrypted with key 'k1'"):
        assert [record async for record in app.letters.export(decrypt=True)]


async def test_acts_by_payload_are_refused_on_an_encrypted_queue(app: Redrive) -> None:
    await app.enqueue("cards", {"number": "bad"})
    await app.run(until_idle=True)
    with pytest.raises(
        BadFilter, match=r"column 1: payload filters cannot be used on queue 'cards': it is encrypted\n"
    ):
        await app.letters.find("payload.number:bad")
    assert len(await app.letters.find("queue:cards")) == 1


async def test_encrypt_is_a_truth_value(app: Redrive) -> None:
    with pytest.raises(ConfigError, match="encrypt: 'yes' is neither True nor False"):
        await app.configure("cards", reason="x", encrypt="yes")  # type: ignore[arg-type]  # what callers may give
