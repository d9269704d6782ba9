"""Encryption: bodies of an encrypted queue are stored encrypted only, and every verb gives back what was put."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from redrive.core import codec
from redrive.core.acts import (
    Discard,
    Edit,
    Replay,
)
from redrive.core.decide import ToDone
from redrive.core.filters import parse
from redrive.core.item import Ending, History, Item, NewItem, Terms, payloads_of
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    QueueChange,
    Reencrypted,
    Settlement,
)
from redrive.errors import BadFilter, ConfigError, EncryptionKeyMissing
from redrive.stores.audit import AuditRecord
from redrive.stores.bodies import as_stored
from redrive.stores.damage import PAUSES
from redrive.stores.keyring import NONCE_SIZE, Keyring
from redrive.stores.packing import key_id_of, sealed_header
from redrive.testing.conformance.kit import (
    QUEUE,
    TTL,
    WORKER,
    World,
    act,
    asking,
    dead,
    failed,
    finished,
    fresh,
    ids,
    new,
    next_leases,
)

PLAIN = "plain"
SMALL = b'{"card": "4111 1111 1111 1111"}'
HEAVY = b'{"card": "4111 1111 1111 1111", "n": 123456789}' * 4_000
RESULT = b'{"iban": "DE02 1203 0000 0000 2020 51"}'
OLD, NEW = bytes(range(32)), bytes(range(32, 64))


@dataclass(frozen=True)
class Rings:
    """`both`: after a rotation from k1 to k2. `wrong`: another key under the id k1."""

    first = Keyring({"k1": OLD}, current="k1")
    both = Keyring({"k1": OLD, "k2": NEW}, current="k2")
    second = Keyring({"k2": NEW}, current="k2")
    wrong = Keyring({"k1": NEW}, current="k1")


async def encrypt(world: World, queue: str = QUEUE) -> None:
    world.store.use_keys(Rings.first)
    await world.set(QueueChange(encrypt=True), queue)


async def stored(world: World, item_id: str) -> Item:
    """With its payload as the store keeps it."""
    return (await as_stored(world.store.get(item_id))).item


async def is_sealed(world: World, made: NewItem, key: str = "k1") -> bool:
    found = await stored(world, made.id)
    hidden = made.payload not in found.payload and b"4111" not in found.payload
    return found.sealed == key == key_id_of(found.payload) and hidden and key in found.flaw


async def test_an_encrypted_queue_gives_back_what_was_put_through_every_verb(world: World) -> None:
    await encrypt(world)
    made = [new(SMALL), new(HEAVY), new(b"")]
    await world.put(*made)
    bodies = {item.id: item.payload for item in made}

    def same(items: tuple[Item, ...]) -> bool:
        fits = all(type(item.payload) is bytes and item.payload == bodies[item.id] for item in items)
        return fits and len(items) == len(bodies) and not any(item.flaw or item.sealed for item in items)

    assert [await is_sealed(world, item) for item in made[:2]] == [True, True]
    assert (await world.store.put(made)).already == tuple(bodies)
    assert same((await world.store.find(EVERYTHING)).items)
    items = await world.lease(50, nonce="asked")
    assert same(items)
    assert same(await world.lease(50, nonce="asked"))
    assert same(next_leases(await world.settle(*map(failed, items), then=asking(50))).items)
    world.tick(TTL + 1)
    taken = await world.store.reclaim("reaper", [QUEUE], TTL, 50)
    assert same(taken)
    await world.finish(*map(dead, taken))
    assert same((await world.store.find(Match("state", "=", "dead"))).items)
    assert same(await world.store.lease_letters(list(bodies), WORKER, TTL))
    world.tick(TTL + 1)
    await world.store.amend(Ids(tuple(bodies)), Replay(), act())
    again = await world.lease(50)
    assert same(again)
    await world.finish(*(finished(item, RESULT) for item in again))
    for item_id, body in bodies.items():
        done = await world.item(item_id)
        assert (done.state, done.payload, done.result) == (State.DONE, body, RESULT)
    await world.sound()


async def test_encrypted_results_whether_the_caller_names_the_queue_or_not(world: World) -> None:
    await encrypt(world)
    named, unnamed = new(SMALL), new(SMALL)
    await world.put(named, unnamed)
    held = {item.id: item for item in await world.lease(2)}
    end = finished(held[named.id], RESULT)
    await world.finish(structs.replace(end, queue=QUEUE), finished(held[unnamed.id], RESULT))
    letter = await world.letter()
    (given,) = await world.store.lease_letters([letter.id], WORKER, TTL)
    await world.store.settle_letters([Settlement(given.id, given.deliveries, ToDone(RESULT))])
    over = (named.id, unnamed.id, letter.id)
    assert [(await world.item(one)).result for one in over] == [RESULT] * 3
    world.store.use_keys(None)
    for one in over:
        found = await world.item(one)
        assert (found.state, found.result) == (State.DONE, None)
        assert "encrypted with key 'k1'" in found.flaw


async def test_encrypted_results_of_items_that_were_put_in_clear(world: World) -> None:
    made = new(SMALL)
    await world.put(made)
    (item,) = await world.lease(1)
    await encrypt(world)
    await world.finish(finished(item, RESULT))
    assert (await world.item(made.id)).result == RESULT
    world.store.use_keys(None)
    assert (await world.item(made.id)).result is None


async def test_encrypted_follow_ups(world: World) -> None:
    await encrypt(world)
    await world.put(new(queue=PLAIN), new(queue=PLAIN))
    one, two = await world.lease(2, queue=PLAIN)
    child, grandchild = new(SMALL), new(SMALL)
    await world.finish(finished(one, None, [child]))
    await world.finish(dead(two))
    (given,) = await world.store.lease_letters([two.id], WORKER, TTL)
    await world.store.settle_letters([Settlement(given.id, given.deliveries, ToDone(), None, (grandchild,))])
    for made in (child, grandchild):
        assert await is_sealed(world, made)
        assert (await world.item(made.id)).payload == SMALL
    assert (await stored(world, one.id)).sealed == ""


async def test_encrypted_queues_take_nothing_from_a_process_without_keys(world: World) -> None:
    await encrypt(world)
    letter = await world.letter()
    there = new(SMALL)
    await world.put(there, new(SMALL), new(queue=PLAIN))
    (held,) = await world.lease(1)
    (plain,) = await world.lease(1, queue=PLAIN)
    (given,) = await world.store.lease_letters([letter.id], WORKER, TTL)
    history = await world.store.get(letter.id)
    foreign = structs.replace(history, item=structs.replace(history.item, id=fresh("import"), payload=SMALL))
    world.store.use_keys(None)
    before = await world.store.tally()
    refused: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: world.store.put([new(SMALL)]),
        lambda: world.store.put([there]),
        lambda: world.store.put([structs.replace(there, terms=Terms(order_key="a"))]),
        lambda: world.settle(finished(plain, None, [there])),
        lambda: world.store.put([new(SMALL, terms=Terms(order_key="a")), new(queue=PLAIN)]),
        lambda: world.settle(finished(plain), finished(held, RESULT)),
        lambda: world.settle(finished(plain, None, [new(SMALL)])),
        lambda: world.settle(finished(plain, None, [new(SMALL, terms=Terms(order_key="a"))])),
        lambda: world.store.settle_letters([Settlement(given.id, given.deliveries, ToDone(RESULT))]),
        lambda: world.store.settle_letters([Settlement(given.id, given.deliveries, ToDone(), None, (new(SMALL),))]),
        lambda: world.store.take_in([foreign], act()),
    )
    for call in refused:
        with pytest.raises(EncryptionKeyMissing, match="REDRIVE_ENCRYPTION_KEYS") as caught:
            await call()
        assert caught.value.queue == QUEUE
    assert await world.store.tally() == before
    await world.put(new(queue=PLAIN))
    await world.finish(finished(held), finished(plain, RESULT))
    await world.sound()


async def test_encryption_is_in_force_for_every_process_with_the_next_write(world: World) -> None:
    other = await world.another()
    other.use_keys(Rings.first)
    world.store.use_keys(Rings.first)
    clear = new(SMALL)
    await world.put(clear)
    await other.configure(QUEUE, QueueChange(encrypt=True))
    sealed = new(SMALL)
    await world.put(sealed)
    assert await is_sealed(world, sealed)
    assert (await stored(world, clear.id)).payload == SMALL
    assert (await world.store.settings(QUEUE)).encrypt
    await world.set(QueueChange(encrypt=False))
    again = new(SMALL)
    await world.put(again)
    assert (await stored(world, again.id)).payload == SMALL
    assert {item.payload for item in await world.lease(3)} == {SMALL}
    await world.sound()


async def test_what_does_not_decrypt_is_shown_with_its_flaw_and_never_handled(world: World) -> None:
    await encrypt(world)
    made = new(SMALL)
    await world.put(made)
    wrong = "does not decrypt with key 'k1'"
    missing = "encrypted with key 'k1', which this process does not have"
    for ring, said in ((Rings.second, missing), (Rings.wrong, wrong)):
        world.store.use_keys(ring)
        for found in (await world.item(made.id), *(await world.store.find(EVERYTHING)).items):
            assert said in found.flaw
            assert (found.sealed, SMALL in found.payload) == ("k1", False)
    assert await world.lease(1) == ()
    letter = await world.item(made.id)
    assert letter.letter is not None
    assert (letter.letter.reason, letter.attempt, letter.sealed) == ("unreadable", 1, "k1")
    assert wrong in letter.letter.failure.text
    world.store.use_keys(Rings.both)
    assert (await world.item(made.id)).payload == SMALL
    await world.store.amend(Ids((made.id,)), Replay(), act())
    assert (await world.lease_one()).payload == SMALL


async def test_encrypted_items_stay_ready_in_a_process_without_any_keys(world: World) -> None:
    await encrypt(world)
    made, clear = new(SMALL), new(SMALL, queue=PLAIN)
    await world.put(made, clear, new(queue=PLAIN))
    world.store.use_keys(None)
    given = await world.store.lease(asking(5))
    assert (given.items, given.locked) == ((), QUEUE)
    (held,) = await world.lease(1, queue=PLAIN)
    settled = await world.store.settle([finished(held)], asking(5))
    assert settled.leases is not None
    assert (settled.leases.items, settled.leases.locked) == ((), QUEUE)
    assert (await world.item(held.id)).state is State.DONE
    named = asking(1, item=made.id)
    assert (await world.store.lease(named)).locked == QUEUE
    found = await world.item(made.id)
    assert (found.state, found.attempt, found.errors, found.crashes) == (State.READY, 0, 0, 0)
    assert (await world.store.lease(asking(5, queue=PLAIN))).locked == ""
    world.store.use_keys(Rings.first)
    assert (await world.lease_one()).payload == SMALL
    await world.sound()


async def test_encrypted_items_whose_key_is_missing_go_back_and_wait_for_it(world: World) -> None:
    await encrypt(world)
    head = new(SMALL, terms=Terms(order_key="a"))
    await world.put(head)
    world.store.use_keys(Rings.both)
    follower, readable = new(SMALL, terms=Terms(order_key="a")), new(SMALL)
    await world.put(follower, readable)
    world.store.use_keys(Rings.second)
    given = await world.store.lease(asking(5))
    assert (ids(given.items), given.locked) == ((readable.id,), QUEUE)
    assert next_leases(await world.settle(finished(given.items[0]), then=asking(5))).items == ()
    found, last = await world.item(head.id), (await world.store.get(head.id)).attempts[-1]
    assert (found.state, found.attempt, found.errors, found.crashes) == (State.READY, 0, 0, 0)
    assert (last.ending, "'k1'" in last.note) == (Ending.RELEASED, True)
    assert world.store.info().missing_keys == (f"{QUEUE} k1",)
    first, second = [PAUSES.delay(number, 0.5) or 0 for number in (1, 2)]
    world.tick(first)
    assert (await world.store.lease(asking(5))).locked == QUEUE
    world.store.use_keys(Rings.both)
    world.tick(second - 1)
    assert await world.lease(5) == ()
    world.tick(1)
    (item,) = await world.lease(5)
    assert (item.id, item.payload, item.attempt) == (head.id, SMALL, 1)
    assert ids(next_leases(await world.settle(finished(item), then=asking(5))).items) == (follower.id,)
    assert world.store.info().missing_keys == ()
    await world.sound()


@pytest.mark.parametrize("ring", [None, Rings.second], ids=["any", "these"])
async def test_encrypted_items_are_taken_over_by_a_process_without_keys(world: World, ring: Keyring | None) -> None:
    await encrypt(world)
    made = new(SMALL)
    await world.put(made)
    await world.lease(1)
    world.tick(TTL + 1)
    world.store.use_keys(ring)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], TTL, 5)
    assert (taken.id, taken.sealed, taken.state) == (made.id, "k1", State.LEASED)
    assert "encrypted with key 'k1', which this process does not have" in taken.flaw
    await world.finish(failed(taken))
    assert (await world.item(made.id)).state is State.READY
    world.store.use_keys(Rings.first)
    assert (await world.lease_one()).payload == SMALL
    await world.sound()


async def test_encrypted_after_a_rotation_with_the_new_key_and_readable_with_the_old(world: World) -> None:
    await encrypt(world)
    old, fresh_one = new(SMALL), new(SMALL)
    await world.put(old)
    world.store.use_keys(Rings.both)
    await world.put(fresh_one)
    assert await is_sealed(world, old)
    assert await is_sealed(world, fresh_one, "k2")
    assert [item.payload for item in await world.lease(2)] == [SMALL, SMALL]
    assert world.store.info().keys == ("k2", "k1")


async def test_no_two_encrypted_bodies_have_the_same_nonce(world: World) -> None:
    await encrypt(world)
    made = [new(SMALL) for _ in range(20)]
    await world.put(*made)
    start = len(sealed_header(0, "k1"))
    bodies = [(await stored(world, item.id)).payload for item in made]
    assert len({body[start : start + NONCE_SIZE] for body in bodies}) == len(made)


async def test_an_encrypted_payload_is_good_for_its_own_item_only(world: World) -> None:
    await encrypt(world)
    letter = await world.letter()
    history = await as_stored(world.store.get(letter.id))

    def letter_of(item_id: str, body: bytes) -> History:
        return structs.replace(history, item=structs.replace(history.item, id=item_id, payload=body))

    mine, swapped, unlike = fresh("mine"), fresh("swapped"), fresh("result")
    letters = [
        letter_of(mine, bytes(Rings.first.seal(SMALL, mine, "payload"))),
        letter_of(swapped, history.item.payload),
        letter_of(unlike, bytes(Rings.first.seal(SMALL, unlike, "result"))),
    ]
    assert len((await world.store.take_in(letters, act())).added) == 3
    assert (await world.item(mine)).payload == SMALL
    for item_id in (swapped, unlike):
        assert "does not decrypt with key 'k1'" in (await world.item(item_id)).flaw
    for body in (b"", SMALL, bytes(Rings.both.seal(SMALL, "other", "payload"))):
        with pytest.raises(ConfigError, match="it is not encrypted with key 'k1'"):
            await world.store.take_in([letter_of(fresh(), body)], act())


async def test_encrypted_when_letters_are_taken_in(world: World) -> None:
    await encrypt(world)
    history = await world.store.get((await world.letter()).id)
    attempts = tuple(structs.replace(one, output=SMALL) for one in history.attempts)
    item = structs.replace(history.item, id=fresh("clear"), payload=SMALL)
    clear = structs.replace(history, item=item, attempts=attempts)
    await world.store.take_in([clear], act())
    assert await is_sealed(world, new(SMALL, item_id=clear.item.id))
    taken = await world.store.get(clear.item.id)
    assert (taken.item.payload, [one.output for one in taken.attempts]) == (SMALL, [b""])
    await world.store.amend(Ids((clear.item.id,)), Discard(), act())
    (tombstone,) = await world.store.prune(Ids((clear.item.id,)), 1, act())
    assert len(tombstone.payload_sha256) == 64


async def test_payload_filters_do_not_look_into_an_encrypted_queue(world: World) -> None:
    await encrypt(world)
    await world.put(new(SMALL), new(SMALL, queue=PLAIN))
    for text in ("payload.card:*4111* state:ready", f"queue:{QUEUE} 4111", "state:ready (payload.n>1 OR attempts>1)"):
        with pytest.raises(BadFilter, match=f"payload filters cannot be used on queue '{QUEUE}': it is encrypted"):
            await world.store.find(parse(text))
        with pytest.raises(BadFilter, match="encrypted"):
            await world.store.ids(parse(text))
    assert len(await world.store.find(parse(f"queue:{PLAIN} 4111"))) == 1
    assert len(await world.store.find(parse(f"-queue:{QUEUE} state:ready 4111"))) == 1
    assert len(await world.store.find(parse(f"queue:{QUEUE}"))) == 1


def keys_of(found: Reencrypted) -> dict[str, int]:
    return {one.key: one.bodies for one in found.keys}


async def reencrypted(world: World) -> list[str]:
    """What the last entry of the audit names."""
    *_, entry = await world.store.journal("audit")
    record = codec.decode(entry.body, AuditRecord)
    assert (record.change, entry.actor, entry.reason) == ("reencrypt", "ada", "mail server is back")
    return sorted(record.changed)


async def test_reencrypt_replaces_old_keys_and_what_was_in_clear(world: World) -> None:
    clear, done, letter, running = [new(body) for body in (SMALL, HEAVY, SMALL, SMALL)]
    await world.put(clear, new(SMALL, queue=PLAIN))
    await encrypt(world)
    await world.put(done, letter, running)
    await world.finish(finished(await world.grab(done.id), RESULT))
    await world.finish(dead(await world.grab(letter.id)))
    held = await world.grab(running.id)
    assert keys_of(await world.store.reencrypt(dry_run=True)) == {"": 1, "k1": 4}
    world.store.use_keys(Rings.both)
    await world.store.reencrypt(dry_run=True, by=act())
    assert await world.store.journal("audit") == ()
    found = await world.store.reencrypt(by=act())
    assert (found.rewritten, found.running, found.unreadable, found.next) == (4, 1, 0, None)
    assert await reencrypted(world) == sorted([clear.id, done.id, letter.id])
    assert keys_of(found) == {"k1": 1, "k2": 4}
    for made in (clear, done, letter):
        assert await is_sealed(world, made, "k2")
    assert await is_sealed(world, running, "k1")
    await world.finish(finished(held))
    assert (await world.store.reencrypt(queue=QUEUE)).rewritten == 1
    world.store.use_keys(Rings.second)
    assert keys_of(await world.store.reencrypt(dry_run=True)) == {"k2": 5}
    for made in (clear, done, letter, running):
        assert (await world.item(made.id)).payload == made.payload
    assert (await world.item(done.id)).result == RESULT
    await world.sound()


async def test_encrypted_with_another_key_under_a_known_id_is_refused(world: World) -> None:
    clear, there, plain = new(SMALL), new(SMALL), new(queue=PLAIN)
    await world.put(clear, plain)
    await encrypt(world)
    await world.put(there)
    letter = await world.letter()
    held = await world.grab(there.id)
    other = await world.another()
    before = await stored(world, clear.id)
    for ring in (Rings.wrong, Keyring({"k1": NEW, "k2": OLD}, current="k2")):
        other.use_keys(ring)
        refused: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: other.put([new(SMALL)]),
            lambda: other.settle([finished(held, RESULT)]),
            lambda: other.amend(Ids((letter.id,)), Edit(SMALL), act()),
            other.reencrypt,
        )
        for call in refused:
            with pytest.raises(ConfigError, match="key 'k1' is not the key that this store knows under that id"):
                await call()
    assert await stored(world, clear.id) == before
    assert keys_of(await world.store.reencrypt(dry_run=True)) == {"": 1, "k1": 2}
    other.use_keys(Rings.both)
    await other.put([new(SMALL)])
    await world.finish(finished(held, RESULT))
    await world.sound()


async def test_reencrypt_goes_on_by_pages_and_leaves_what_does_not_decrypt(world: World) -> None:
    await encrypt(world)
    await world.put(*[new(SMALL) for _ in range(5)])
    before = await world.store.find(EVERYTHING)
    world.store.use_keys(Rings.second)
    cursor, unreadable = None, 0
    for _ in range(3):
        found = await world.store.reencrypt(2, cursor)
        assert (found.rewritten, set(keys_of(found))) == (0, {"k1"})
        cursor, unreadable = found.next, unreadable + found.unreadable
    assert (cursor, unreadable) == (None, 5)
    world.store.use_keys(Rings.both)
    assert await world.store.find(EVERYTHING) == before
    world.store.use_keys(None)
    with pytest.raises(ConfigError, match="there are no keys to encrypt with"):
        await world.store.reencrypt()


async def test_reencrypt_leaves_what_was_edited_since_it_was_read(world: World) -> None:
    await encrypt(world)
    made, other = new(SMALL, delay=TTL), await world.another()
    await world.put(made)
    store: Any = world.store
    right = store.rewrite_bodies

    async def after_an_edit(rewrites: Sequence[object], by: object) -> int:
        assert (await other.amend(Ids((made.id,)), Edit(HEAVY), act())).changed == (made.id,)
        replaced: int = await right(rewrites, by)
        return replaced

    for handle in (store, other):
        handle.use_keys(Rings.both)
    store.rewrite_bodies = after_an_edit
    assert (await store.reencrypt()).rewritten == 0
    store.rewrite_bodies = right
    assert (await world.item(made.id)).payload == HEAVY
    assert (await store.reencrypt()).rewritten == 1
    assert [one.payload for one in (await store.get(made.id)).revisions] == [SMALL]
    await world.sound()


async def test_encrypted_edits_and_the_payloads_before_them(world: World) -> None:
    await encrypt(world)
    made = new(SMALL)
    await world.put(made)
    other = b'{"card": "4111-2222"}'
    named = Ids((made.id,))
    assert (await world.store.amend(named, Edit(other), act())).changed == (made.id,)
    history = await world.store.get(made.id)
    assert (history.item.payload, [one.payload for one in history.revisions]) == (other, [SMALL])
    raw = await as_stored(world.store.get(made.id))
    assert [(part.sealed, b"4111" in part.payload) for part in payloads_of(raw)] == [("k1", False)] * 2
    world.store.use_keys(None)
    with pytest.raises(EncryptionKeyMissing):
        await world.store.amend(named, Edit(SMALL), act())
    assert "encrypted with key 'k1'" in (await world.store.get(made.id)).revisions[0].flaw
    world.store.use_keys(Rings.both)
    with pytest.raises(ConfigError, match="an edit in an encrypted queue needs exactly one item"):
        await world.store.amend(Match("queue", "=", QUEUE), Edit(SMALL), act())
    found = await world.store.reencrypt(by=act())
    assert (found.rewritten, keys_of(found)) == (2, {"k2": 2})
    assert await reencrypted(world) == [made.id]
    world.store.use_keys(Rings.second)
    assert await world.store.get(made.id) == history
    assert (await world.lease_one()).payload == other
    await world.sound()


async def test_encrypted_payloads_are_edited_only_by_a_process_that_can_read_them(world: World) -> None:
    await encrypt(world)
    made, other = new(SMALL), b'{"card": "4111-2222"}'
    await world.put(made)
    named, before = Ids((made.id,)), await stored(world, made.id)
    for still in (False, True):
        await world.set(QueueChange(encrypt=still))
        for ring in (Rings.second, None):
            world.store.use_keys(ring)
            with pytest.raises(EncryptionKeyMissing, match="is encrypted with key 'k1'") as caught:
                await world.store.amend(named, Edit(other), act())
            assert (caught.value.queue, caught.value.key) == (QUEUE, "k1")
    assert await stored(world, made.id) == before
    world.store.use_keys(Rings.both)
    assert (await world.store.amend(named, Edit(other), act())).changed == (made.id,)
    edited = await as_stored(world.store.get(made.id))
    assert [part.sealed for part in payloads_of(edited)] == ["k2", "k1"]
    await world.sound()


async def test_encrypted_revisions_are_taken_in_as_they_are(world: World) -> None:
    await encrypt(world)
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Edit(SMALL), act())
    history = await world.store.get(letter.id)
    mine = fresh("mine")

    def sealed(body: bytes) -> bytes:
        return bytes(Rings.first.seal(body, mine, "payload"))

    (before,) = history.revisions
    taken = structs.replace(
        history,
        item=structs.replace(history.item, id=mine, payload=sealed(SMALL), sealed="k1"),
        revisions=(structs.replace(before, payload=sealed(before.payload), sealed="k1"),),
    )
    clear = structs.replace(taken, revisions=history.revisions)
    world.store.use_keys(None)
    with pytest.raises(EncryptionKeyMissing):
        await world.store.take_in([clear], act())
    await world.store.take_in([taken], act())
    world.store.use_keys(Rings.first)
    found = await world.store.get(mine)
    assert (found.item.payload, [one.payload for one in found.revisions]) == (SMALL, [before.payload])
    changes = await world.store.changes()
    assert [one.item.payload for one in changes if one.item is not None and one.id == mine] == [SMALL]
