"""The store behind mailboxes: what happens when it fails, when the process forks, and when nobody needs it any more."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from redrive.core.acts import Act, Expire, Replay
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import QueueChange, WorkerBeat
from redrive.engine import store_retry
from redrive.engine.replays import ByPayload
from redrive.errors import BadStoreURL, ConfigError, EncryptionKeyMissing, InvalidParameterError
from redrive.mailboxes import (
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    SQLiteMailbox,
    StoreMailbox,
    open_mailbox,
)
from redrive.mailboxes.boxes.store import MailboxStore
from redrive.office.doors import doors
from redrive.office.replays import start
from redrive.stores.keyring import Keyring
from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from tests.mailboxes.conftest import Openers, item_of
from tests.support.cli import environment
from tests.support.stores import EACH, StoreUrl
from tests.support.warm_python import WarmPython


@pytest.fixture
def faulty(clock: FakeClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock=clock))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_retry, "UNKNOWN_PAUSES", (0, 0, 0))


def test_a_send_that_nobody_can_tell_of_is_sent_once(faulty: FaultyStore, clock: FakeClock) -> None:
    with open_mailbox("requests", faulty, clock=clock) as requests:
        faulty.next("put", Fault.UNKNOWN)
        requests.send(1)
        faulty.next("put", Fault.UNKNOWN_UNDONE)
        requests.send(2)
        assert sorted(message.body for message in requests.receive(10)) == [1, 2]


def test_an_end_that_nobody_can_tell_of_is_ours(faulty: FaultyStore, clock: FakeClock) -> None:
    with open_mailbox("requests", faulty, clock=clock) as requests:
        for n in range(4):
            requests.send(n)
        done, undone, back, lost = requests.receive(10)
        faulty.next("settle", Fault.UNKNOWN)
        done.acknowledge()
        faulty.next("settle", Fault.UNKNOWN_UNDONE)
        undone.acknowledge()
        faulty.next("settle", Fault.UNKNOWN)
        back.nack()
        assert [message.body for message in requests.receive(10)] == [2]
        clock.advance("31s")
        last, *_ = requests.receive(10)
        with pytest.raises(ReceiptHandleExpiredError):
            lost.acknowledge()
        faulty.next("settle", Fault.DUPLICATE)
        last.acknowledge()


def test_an_end_is_ours_also_when_it_is_said_again_later(faulty: FaultyStore, clock: FakeClock) -> None:
    with open_mailbox("requests", faulty, clock=clock) as requests:
        requests.send(1)
        [message] = requests.receive()
        faulty.next("settle", Fault.UNKNOWN)
        faulty.fail("settle", times=3)
        with pytest.raises(MailboxConnectionError):
            message.acknowledge()
        assert not message.is_finalized
        message.acknowledge()
        assert message.is_finalized


def test_leases_that_nobody_can_tell_of_are_the_same_ones(faulty: FaultyStore, clock: FakeClock) -> None:
    with open_mailbox("requests", faulty, clock=clock) as requests:
        requests.send(1)
        faulty.next("lease", Fault.UNKNOWN)
        [message] = requests.receive()
        assert message.delivery_count == 1
        clock.advance("31s")
        faulty.next("reclaim", Fault.UNKNOWN)
        assert requests.receive() == []  # nobody knows what was taken over; it is not ours for long
        clock.advance("5s")
        faulty.next("settle", Fault.UNKNOWN)
        [again] = requests.receive()
        assert again.delivery_count == 2


def test_a_store_that_is_away_is_said_to_be_and_comes_back(faulty: FaultyStore, clock: FakeClock) -> None:
    with open_mailbox("requests", faulty, clock=clock) as requests:
        requests.send(1)
        [message] = requests.receive()
        for verb, call in (
            ("put", lambda: requests.send(2)),
            ("lease", requests.receive),
            ("settle", message.acknowledge),
            ("extend", lambda: message.extend_visibility(60)),
            ("tally", requests.approximate_count),
            ("amend", requests.purge),
        ):
            faulty.fail(verb, times=1)
            with pytest.raises(MailboxConnectionError):
                call()
        message.acknowledge()
        assert requests.approximate_count() == 0


def test_what_cannot_be_a_store_is_said_at_once() -> None:
    with pytest.raises(BadStoreURL, match="unknown scheme"):
        open_mailbox("requests", "mysql://host/db")


def test_a_store_that_is_away_from_the_beginning_is_not_missed_before_the_first_call(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with SQLiteMailbox[int, int]("requests", str(folder / "redrive.db")) as requests:
        with pytest.raises(MailboxConnectionError):
            requests.send(1)
        folder.mkdir()
        requests.send(1)
        assert requests.approximate_count() == 1


def test_nothing_is_touched_before_the_first_call(tmp_path: Path) -> None:
    path = tmp_path / "what? 100% #1.db"
    with SQLiteMailbox[int, int]("requests", path) as requests:
        assert not path.exists()
        requests.send(1)
        assert path.exists()


def test_mailboxes_of_one_store_share_it_and_the_last_closes_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/redrive.db"
    first, second = open_mailbox("a", address), open_mailbox("b", f"sqlite:///{tmp_path}/./redrive.db")
    shared = first.shared
    assert second.shared is shared
    assert MailboxStore.find(shared.fingerprint) is shared
    first.send(1)
    first.close()
    second.send(1)
    second.close()
    assert MailboxStore.find(shared.fingerprint) is None
    with open_mailbox("a", address) as again:
        assert again.approximate_count() == 1
    assert "redrive-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_queue_is_set_up_once_and_left_as_somebody_set_it(mailboxes: Openers, kind: str) -> None:
    opened = mailboxes(kind)
    first = opened("requests", max_size=7)
    first.send(1)
    shared = first.shared

    async def look() -> tuple[Any, dict[str, str]]:
        return await shared.store.settings("requests"), await doors(shared.store)

    settings, marked = shared.call(look)
    assert (settings.keep, settings.capacity) == (3_600_000, 7)
    assert marked["requests"] == "mailboxes"
    opened("requests", keep="2h").send(2)
    assert shared.call(look)[0] == settings


def test_whoever_receives_is_seen_among_the_workers(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    other = mailboxes("memory")("other")
    shared = requests.shared
    requests.send(1)
    assert shared.call(shared.store.workers) == ()
    requests.receive()
    assert beats(requests)[0].facts.queues == ("requests",)
    clock.advance("11s")
    other.receive()
    [beat] = beats(requests)
    assert (beat.facts.queues, beat.alive) == (("other", "requests"), True)
    assert beat.facts.pid == os.getpid()
    store = shared.store
    requests.close()
    other.close()
    assert isinstance(store, MemoryStore)


@pytest.mark.parametrize("kind", [each for each in EACH if each != "memory"])
def test_whoever_has_closed_its_last_mailbox_is_no_worker_any_more(kind: str, mailboxes: Openers) -> None:
    """No time passes: the last beat is as young as can be."""
    witness = mailboxes(kind)("other")  # another clock is another shared store, and this one receives nothing
    requests = mailboxes(kind)("requests", clock=FakeClock())
    requests.receive()
    [before] = beats(requests)
    assert (before.alive, before.facts.stopped) == (True, False)
    requests.close()
    [after] = beats(witness)
    assert (after.alive, after.facts.stopped, after.seen_at) == (False, True, before.seen_at)


def beats(mailbox: StoreMailbox[Any, Any]) -> tuple[WorkerBeat, ...]:
    shared = mailbox.shared

    async def look() -> tuple[WorkerBeat, ...]:
        while shared.tasks.at_work:  # it is done beside the calls
            await shared.tasks.rest()
        return await shared.store.workers()

    return shared.call(look)


@pytest.mark.slow
def test_what_was_acknowledged_is_kept_for_an_hour(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("sqlite")("requests")
    shared = requests.shared
    key = requests.send(1)
    requests.receive()[0].acknowledge()
    clock.advance("61m")
    requests.receive()
    beats(requests)
    assert shared.call(shared.store.tombstone, key) is not None


def test_a_process_that_receives_sends_replays_by_payload(mailboxes: Openers, clock: FakeClock) -> None:
    requests, other = mailboxes("memory")("requests"), mailboxes("memory")("other")
    shared = requests.shared
    key = requests.send(1)
    shared.call(shared.store.amend, Ids((key,)), Expire(), Act("ann", "x", "e-1"))
    by_payload, act = ByPayload("body"), Act("ann", "x", "r-1")
    shared.call(start, shared.store, [key], Replay(), None, act, by_payload=by_payload)
    clock.advance("11s")
    other.receive()
    beats(other)
    assert item_of(requests, key).state is State.READY


FORKING = """
import os, sys
from redrive.mailboxes import open_mailbox, InMemoryMailbox, MailboxConnectionError

requests = open_mailbox("requests", sys.argv[1])
memory = InMemoryMailbox("memory")
requests.send("before")
memory.send(1)
child = os.fork()
if child == 0:
    requests.send("child")
    got = [message.body for message in requests.receive(10, visibility_timeout=0)]
    try:
        memory.approximate_count()
    except MailboxConnectionError as error:
        got.append("memory" in str(error))
    print("child", sorted(map(str, got)), flush=True)
    requests.close()
    os._exit(0)
os.waitpid(child, 0)
requests.send("parent")
print("parent", sorted(message.body for message in requests.receive(10)), memory.approximate_count(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_forked_child_has_a_place_of_its_own(
    store: str, store_url: StoreUrl, tmp_path: Path, warm_python: WarmPython
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKING)
    run = warm_python.run(str(script), store_url(store), cwd=tmp_path, env=environment())
    assert run.stdout.splitlines() == [
        "child ['True', 'before', 'child']",
        "parent ['before', 'child', 'parent'] 1",
    ], run.stderr
    assert run.returncode == 0


def test_a_store_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    store = store_from_url(f"sqlite:///{tmp_path}/redrive.db")
    with open_mailbox("a", store) as first, open_mailbox("b", store) as second:
        first.send(1, reply_to=second)
        first.receive()[0].reply(2)
        assert second.receive()[0].body == 2


def test_an_encrypted_mailbox_gives_nothing_to_a_process_without_keys(mailboxes: Openers, clock: FakeClock) -> None:
    keys = Keyring({"k1": bytes(range(32))}, current="k1")
    inbox = mailboxes("sqlite")("inbox", encryption=keys)
    shared = inbox.shared
    shared.call(shared.store.configure, "inbox", QueueChange(encrypt=True))
    message_id = inbox.send("secret")
    keyless = mailboxes("sqlite")("inbox")
    for call in (lambda: keyless.send("more"), lambda: keyless.receive(10)):
        with pytest.raises(EncryptionKeyMissing, match="queue 'inbox' is encrypted"):
            call()
    other = mailboxes("sqlite")("inbox", encryption=Keyring({"k2": bytes(range(1, 33))}, current="k2"))
    later = other.send("readable")
    assert [message.body for message in other.receive(10)] == ["readable"]
    assert other.receive(10) == []
    item = item_of(keyless, message_id)
    assert (item.state, item.attempt, item_of(keyless, later).state) == (State.READY, 0, State.LEASED)
    clock.advance("1m")
    (message,) = inbox.receive(10)
    assert (message.id, message.body) == (message_id, "secret")
    message.acknowledge()
    wrong = mailboxes("sqlite")("inbox", encryption=Keyring({"k1": bytes(32)}, current="k1"))
    with pytest.raises(ConfigError, match="key 'k1' is not the key that this store knows"):
        wrong.receive()


def test_messages_attempts_and_beats_have_the_release_of_the_program(
    mailboxes: Openers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_RELEASE", "1.4.2")
    inbox = mailboxes("memory")("inbox")
    sent = [inbox.send(1), *inbox.send_many([2])]
    assert [item_of(inbox, each).release for each in sent] == ["1.4.2"] * 2
    inbox.receive()[0].nack()
    shared = inbox.shared
    shared.call(shared.tasks.rest)
    (beat,) = shared.call(shared.store.workers)
    (attempt,) = shared.call(shared.store.get, sent[0]).attempts
    assert (attempt.release, beat.facts.release) == ("1.4.2", "1.4.2")


def test_keys_are_given_to_a_url_and_not_to_a_store(faulty: FaultyStore) -> None:
    keys = Keyring({"k1": bytes(range(32))}, current="k1")
    with pytest.raises(InvalidParameterError, match="a store object has its own keys"):
        open_mailbox("inbox", faulty, encryption=keys)
