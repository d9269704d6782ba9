"""Dedupe keys: one live item per key; a twin is told of its holder, and never moves, ends or deletes anything."""

from __future__ import annotations

from typing import Literal

from redrive.core.acts import (
    Cancel,
    Discard,
    Replay,
)
from redrive.core.item import Dedupe, Millis, NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import (
    Duplicate,
    PutResult,
    QueueChange,
)
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    dead,
    failed,
    finished,
    ids,
    new,
    refusal,
    skipped_ids,
)


def twin(
    key: str = "k", queue: str = QUEUE, *, scope: Literal["queue", "store"] = "queue", window: Millis | None = None
) -> NewItem:
    return new(queue=queue, terms=Terms(dedupe=Dedupe(key, scope, window)))


async def accepted(world: World, item: NewItem) -> bool:
    """Whether it is added; if not, that it is told as a duplicate and nothing else happens."""
    result = await world.store.put([item])
    if result.added:
        assert result == PutResult(added=(item.id,))
        return True
    assert [one.id for one in result.duplicates] == [item.id]
    assert result.already == ()
    assert await world.history(item.id) is None
    return False


async def test_dedupe_tells_of_the_holder(world: World) -> None:
    one, two = twin(), twin()
    await world.put(one)
    before = await world.store.get(one.id)
    assert await world.store.put([two]) == PutResult(duplicates=(Duplicate(two.id, one.id),))
    assert await world.store.get(one.id) == before
    assert (await world.count()).ready == 1
    await world.sound()


async def test_dedupe_within_one_call(world: World) -> None:
    one, two, other, plain = twin(), twin(), twin("other"), new()
    result = await world.store.put([one, two, other, plain])
    assert result == PutResult((one.id, other.id, plain.id), (), (Duplicate(two.id, one.id),))


async def test_dedupe_id_comes_first(world: World) -> None:
    """The repeat of a put after a lost reply is no duplicate of itself, whoever holds the key now."""
    one = twin()
    await world.put(one)
    assert await world.store.put([one]) == PutResult(already=(one.id,))
    await world.end(one, finished)
    await world.put(twin())
    assert await world.store.put([one]) == PutResult(already=(one.id,))


async def test_dedupe_key_belongs_to_its_queue(world: World) -> None:
    await world.put(twin())
    assert await accepted(world, twin(queue="other"))


async def test_dedupe_key_of_the_whole_store(world: World) -> None:
    one = twin(scope="store")
    await world.put(one)
    two = twin(queue="other", scope="store")
    assert (await world.store.put([two])).duplicates == (Duplicate(two.id, one.id),)
    assert await accepted(world, twin())


async def test_dedupe_takes_any_text_as_key(world: World) -> None:
    for key in ("a b", "☃/…", "{tag}:*?", "x" * 500, "'; --"):
        await world.put(twin(key))
        assert not await accepted(world, twin(key)), key


async def test_dedupe_key_is_held_while_it_waits_runs_and_retries(world: World) -> None:
    one = twin()
    await world.put(one)
    item = await world.lease_one()
    assert not await accepted(world, twin())
    await world.finish(failed(item, delay=SECOND))
    assert not await accepted(world, twin())
    world.tick(SECOND)
    item = await world.lease_one()
    world.tick(TTL + 1)
    assert not await accepted(world, twin())
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await world.finish(after_crash(lost))
    assert not await accepted(world, twin())


async def test_dedupe_key_is_free_when_it_is_done(world: World) -> None:
    one, two = twin(), twin()
    await world.put(one)
    await world.end(one, finished)
    assert await accepted(world, two)
    assert (await world.item(one.id)).state is State.DONE
    assert not await accepted(world, twin())
    await world.sound()


async def test_dedupe_key_is_free_when_it_is_dead(world: World) -> None:
    """A letter must not keep new work out, nor the new work end the letter."""
    one = twin(window=60 * SECOND)
    await world.put(one)
    await world.end(one, dead)
    before = await world.store.get(one.id)
    assert await accepted(world, twin())
    assert await world.store.get(one.id) == before
    await world.sound()


async def test_dedupe_key_is_free_when_it_is_cancelled(world: World) -> None:
    one = twin(window=60 * SECOND)
    await world.put(one)
    await world.store.amend(Ids((one.id,)), Cancel(), act())
    assert await accepted(world, twin())


async def test_dedupe_window_keeps_the_key_of_what_is_done(world: World) -> None:
    """To the millisecond, counted from the put."""
    one = twin(window=10 * SECOND)
    await world.put(one)
    world.tick(4 * SECOND)
    await world.end(one, finished)
    assert not await accepted(world, twin())
    world.tick(6 * SECOND - 1)
    assert not await accepted(world, twin())
    world.tick(1)
    two = twin()
    assert await accepted(world, two)
    assert not await accepted(world, twin())
    await world.sound()


async def test_dedupe_window_is_no_limit_for_what_lives(world: World) -> None:
    one = twin(window=SECOND)
    await world.put(one)
    world.tick(60 * SECOND)
    assert not await accepted(world, twin())
    await world.end(one, finished)
    assert await accepted(world, twin())


async def test_dedupe_window_outlives_a_prune(world: World) -> None:
    one, two = twin(window=60 * SECOND), twin()
    await world.put(one)
    await world.end(one, finished)
    assert len(await world.store.prune(Ids((one.id,)), 1, act())) == 1
    assert (await world.store.put([two])).duplicates == (Duplicate(two.id, one.id),)
    world.tick(60 * SECOND)
    assert await accepted(world, two)
    await world.sound()


async def test_dedupe_keys_are_forgotten_by_a_sweep_only_when_their_window_is_over(world: World) -> None:
    one = twin(window=60 * SECOND)
    await world.put(one)
    await world.end(one, finished)
    await world.store.sweep(100, act())
    assert not await accepted(world, twin())
    world.tick(60 * SECOND)
    await world.store.sweep(100, act())
    assert await accepted(world, twin())
    await world.store.sweep(100, act())
    assert not await accepted(world, twin())


async def test_dedupe_replay_takes_the_key_again(world: World) -> None:
    one = twin()
    await world.put(one)
    await world.end(one, dead)
    assert (await world.store.amend(Ids((one.id,)), Replay(), act())).changed == (one.id,)
    assert not await accepted(world, twin())
    await world.end(one, finished)
    assert await accepted(world, twin())
    await world.sound()


async def test_dedupe_replay_is_skipped_while_a_twin_lives(world: World) -> None:
    one, two = twin(), twin()
    await world.put(one)
    await world.end(one, dead)
    await world.put(two)
    amended = await world.store.amend(Ids((one.id,)), Replay(), act())
    assert skipped_ids(amended) == (one.id,)
    assert two.id in amended.skipped[0].reason
    assert (await world.item(one.id)).state is State.DEAD
    await world.end(two, finished)
    assert (await world.store.amend(Ids((one.id,)), Replay(), act())).changed == (one.id,)


async def test_dedupe_replay_by_force_runs_without_the_key(world: World) -> None:
    one, two = twin(), twin()
    await world.put(one)
    await world.end(one, dead)
    await world.put(two)
    assert (await world.store.amend(Ids((one.id,)), Replay(force=True), act())).changed == (one.id,)
    await world.end(one, finished)
    # The key was the twin's all the time.
    assert not await accepted(world, twin())
    await world.end(two, finished)
    assert await accepted(world, twin())
    await world.sound()


async def test_dedupe_replay_is_skipped_within_the_window_of_a_twin(world: World) -> None:
    one, two = twin(), twin(window=60 * SECOND)
    await world.put(one)
    await world.end(one, dead)
    await world.put(two)
    await world.end(two, finished)
    assert skipped_ids(await world.store.amend(Ids((one.id,)), Replay(), act())) == (one.id,)
    world.tick(60 * SECOND)
    assert (await world.store.amend(Ids((one.id,)), Replay(), act())).changed == (one.id,)


async def test_dedupe_replay_of_twins_lets_the_first_through(world: World) -> None:
    letters = [twin(), twin(), twin("other")]
    for letter in letters:
        await world.put(letter)
        await world.end(letter, dead)
    amended = await world.store.amend(Ids(ids(letters)), Replay(), act())
    assert amended.changed == (letters[0].id, letters[2].id)
    assert skipped_ids(amended) == (letters[1].id,)
    await world.sound()


async def test_dedupe_of_a_discarded_letter_is_free(world: World) -> None:
    one = twin()
    await world.put(one)
    await world.end(one, dead)
    await world.store.amend(Ids((one.id,)), Discard(), act())
    assert await accepted(world, twin())


async def test_dedupe_of_follow_ups(world: World) -> None:
    """An item may put its own successor; one that a twin keeps out does not stop the settle."""
    one, next_one, late = twin(), twin(), twin()
    await world.put(one)
    item = await world.lease_one()
    await world.finish(finished(item, follow_ups=[next_one]))
    assert (await world.item(next_one.id)).state is State.READY
    await world.put(other := new(queue="other"))
    await world.finish(finished(await world.lease_one(queue="other"), follow_ups=[late]))
    assert (await world.item(other.id)).state is State.DONE
    assert await world.history(late.id) is None


async def test_dedupe_takes_no_room_in_a_full_queue(world: World) -> None:
    one = twin()
    await world.put(one)
    await world.set(QueueChange(capacity=1))
    assert not await accepted(world, twin())


async def test_dedupe_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    one, two = twin("one"), twin("two", window=60 * SECOND)
    await world.put(one, two)
    await world.end(two, finished)
    await world.store.close()
    world.store = await world.another()
    assert (await world.item(one.id)).terms == one.terms
    assert not await accepted(world, twin("one"))
    assert not await accepted(world, twin("two"))


async def test_dedupe_that_cannot_be_kept_is_refused(world: World) -> None:
    good = new()
    for dedupe, field in (
        (Dedupe(""), "dedupe_key"),
        (Dedupe("k", "queue", -1), "dedupe_window"),
        (Dedupe("\0"), "dedupe_key"),
    ):
        put = world.store.put([good, new(terms=Terms(dedupe=dedupe))])
        assert (await refusal(put, dedupe)).field == field
        assert await world.history(good.id) is None
