"""Messages that take long are kept: by beats, and by time while the last beat is young."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lease_extender import LeaseExtender, LeaseExtenderConfig
from redrive.errors import InvalidParameterError, MailboxConnectionError, ReceiptHandleExpiredError
from redrive.mailboxes.boxes.message import Message
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers
from tests.mailboxes.threads import SOON, until
from tests.support.logs import ours


class Kept(Message[Any, Any]):
    """Notes by how much it was extended, and when."""

    def __init__(self, clock: FakeClock, *errors: Exception) -> None:
        self.clock = clock
        self.errors = list(errors)
        self.extended: list[tuple[float, float]] = []
        self.tries = 0
        self.over = False

    @property
    def id(self) -> str:
        return "m"

    @property
    def body(self) -> Any:
        return None

    @property
    def receipt_handle(self) -> str:
        return "m:1"

    @property
    def delivery_count(self) -> int:
        return 1

    @property
    def enqueued_at(self) -> datetime:
        return datetime.now(UTC)

    @property
    def is_finalized(self) -> bool:
        return self.over

    def acknowledge(self) -> None:
        self.over = True

    def nack(self, visibility_timeout: float = 0) -> None:
        self.over = True

    def extend_visibility(self, timeout: float) -> None:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        self.extended.append((self.clock.monotonic() / 1000, timeout))

    def reply(self, body: Any) -> str:
        return ""


def watches() -> set[threading.Thread]:
    """The threads of extenders, of this test and of those before."""
    return {thread for thread in threading.enumerate() if thread.name == "redrive-extender"}


@pytest.fixture
def heartbeat(clock: FakeClock) -> Heartbeat:
    return Heartbeat(clock)


def test_m39_beats_under_a_long_lease_never_make_it_shorter(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message = Kept(clock)
    # Silence of next to nothing: it is beats that extend here, not time.
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    with extender.attach(message, heartbeat, visibility_timeout=1800):
        for _ in range(25):
            heartbeat.beat()
            clock.advance("60s")
        assert message.extended == []
        heartbeat.beat()
        # At 1500 s an extension by 300 s would end when the lease does; later it is worth something.
        assert message.extended == []
        clock.advance("60s")
        heartbeat.beat()
        assert message.extended == [(1560, 300)]
    extender.close()


def test_m39_the_store_does_not_make_it_shorter_either(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("long work")
    (message,) = requests.receive(visibility_timeout=1800)
    heartbeat = Heartbeat(clock)
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    # It does not know how long the message is ours, so it extends at the first beat, by 300 s.
    with extender.attach(message, heartbeat):
        heartbeat.beat()
    extender.close()
    clock.advance("1799s")
    assert requests.receive() == []
    message.acknowledge()
    assert requests.approximate_count() == 0


def test_beats_extend_at_most_once_in_an_interval(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message = Kept(clock)
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    with extender.attach(message, heartbeat):
        for _ in range(13):
            heartbeat.beat()
            clock.advance("10s")
    extender.close()
    assert message.extended == [(0, 300), (60, 300), (120, 300)]


def test_a_handler_that_cannot_beat_keeps_its_message_until_it_is_silent_for_too_long(
    clock: FakeClock, heartbeat: Heartbeat
) -> None:
    message = Kept(clock)
    extender = LeaseExtender(LeaseExtenderConfig(interval=60, extension=300, silence=200), clock=clock)
    with extender.attach(message, heartbeat, visibility_timeout=300):
        for _ in range(10):
            until(lambda: clock.sleepers == 1)
            clock.advance("30s")
        until(lambda: clock.sleepers == 1)
    extender.close()
    # Looked at each 60 s, and the last time at 180 s was within 200 s of the last beat.
    assert message.extended == [(60, 300), (120, 300), (180, 300)]


def test_a_short_lease_is_extended_before_it_is_over(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message = Kept(clock)
    extender = LeaseExtender(clock=clock)
    with extender.attach(message, heartbeat, visibility_timeout=10):
        until(lambda: clock.sleepers == 1 and clock.next_in == 5000)
        clock.advance("5s")
        until(lambda: message.extended and clock.sleepers == 1 and clock.next_in == 5000)
        clock.advance("5s")
        until(lambda: len(message.extended) > 1)
    extender.close()
    assert message.extended == [(5, 10), (10, 10)]


def test_an_extension_that_somebody_chose_is_as_he_chose_it(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message = Kept(clock)
    extender = LeaseExtender(LeaseExtenderConfig(extension=300), clock=clock)
    with extender.attach(message, heartbeat, visibility_timeout=10):
        clock.advance("5s")
        heartbeat.beat()
    extender.close()
    assert message.extended == [(5, 300)]


@pytest.mark.parametrize("worked", [0, 1, 7, 400])
def test_what_a_killed_loop_had_is_visible_again_after_the_visibility_timeout(
    mailboxes: Openers, clock: FakeClock, worked: int
) -> None:
    """However long it had worked on it: so many seconds here, with a beat in each."""
    requests = mailboxes("memory")("requests")
    requests.send("long work")
    batch = requests.receive(visibility_timeout=2)
    heartbeat = Heartbeat(clock)
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    with extender.attach(batch, heartbeat, visibility_timeout=2):
        for _ in range(worked):
            clock.advance("1s")
            heartbeat.beat()
        assert requests.receive(visibility_timeout=0) == [], "while it lives it is kept"
    extender.close()
    clock.advance("2s")
    assert [each.id for each in requests.receive()] == [batch[0].id]


def test_a_short_lease_does_not_wait_for_the_watch_of_a_long_one_before_it() -> None:
    extended = threading.Event()

    class Tells(Kept):
        def extend_visibility(self, timeout: float) -> None:
            extended.set()

    extender, heartbeat = LeaseExtender(), Heartbeat()
    with extender.attach(Kept(FakeClock()), heartbeat, visibility_timeout=300):
        pass
    with extender.attach(Tells(FakeClock()), heartbeat, visibility_timeout=0.02):
        assert extended.wait(SOON)
    extender.close()


def test_the_whole_batch_is_kept_except_what_has_ended(clock: FakeClock, heartbeat: Heartbeat) -> None:
    batch = [Kept(clock), Kept(clock), Kept(clock)]
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    with extender.attach(batch, heartbeat, visibility_timeout=60):
        clock.advance("30s")
        batch[0].acknowledge()
        heartbeat.beat()
    extender.close()
    assert [message.extended for message in batch] == [[], [(30, 60)], [(30, 60)]]


def test_after_the_block_nothing_is_extended_and_no_thread_stays(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message, before = Kept(clock), watches()
    extender = LeaseExtender(clock=clock)
    with extender.attach(message, heartbeat, visibility_timeout=10):
        assert watches() - before
        until(lambda: clock.sleepers == 1)
    until(lambda: not watches() - before)
    clock.advance("5s")
    heartbeat.beat()
    assert message.tries == 0


def test_in_real_time_one_thread_does_for_many_batches_and_ends_when_there_are_no_more() -> None:
    clock, before = FakeClock(), watches()
    extender = LeaseExtender()
    seen: set[threading.Thread] = set()
    for _ in range(3):
        # It looks again in a minute: in this test it has no reason to end by itself.
        with extender.attach(Kept(clock), Heartbeat(), visibility_timeout=300):
            seen |= watches() - before
    assert len(seen) == 1
    extender.close()
    until(lambda: not watches() - before)
    with extender.attach(Kept(clock), Heartbeat(), visibility_timeout=0.5):
        assert watches() - before
    until(lambda: not watches() - before)
    with extender.attach(Kept(clock), Heartbeat(), visibility_timeout=300):
        assert len(watches() - before) == 1
    extender.close()
    until(lambda: not watches() - before)


def test_time_that_passes_by_itself_does_not_pass_while_a_handler_works() -> None:
    clock = FakeClock(autoadvance=True)
    message, before = Kept(clock), watches()
    extender = LeaseExtender(clock=clock)
    with extender.attach(message, Heartbeat(clock), visibility_timeout=300):
        until(lambda: clock.sleepers == 1)
        threading.Event().wait(0.02)
    until(lambda: not watches() - before)
    assert clock.monotonic() == 0
    assert message.tries == 0


def test_a_lost_lease_is_said_once_and_a_store_that_is_down_is_asked_again(
    clock: FakeClock, heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    down = Kept(clock, MailboxConnectionError("down"))
    lost = Kept(clock, ReceiptHandleExpiredError("gone"), ReceiptHandleExpiredError("gone"))
    extender = LeaseExtender(LeaseExtenderConfig(silence=0.001), clock=clock)
    with extender.attach([down, lost], heartbeat):
        for _ in range(3):
            heartbeat.beat()
            clock.advance("60s")
    extender.close()
    assert down.extended == [(60, 300), (120, 300)]
    assert lost.tries == 1
    texts = [record.getMessage() for record in ours(caplog)]
    assert [text.partition(" message_id")[0] for text in texts] == [
        "Lease could not be extended",
        "Lease lost while the message was worked on",
    ]


def test_a_beat_in_an_event_loop_blocks_nobody_and_time_extends(clock: FakeClock, heartbeat: Heartbeat) -> None:
    message = Kept(clock)
    extender = LeaseExtender(clock=clock)

    async def beat() -> None:
        heartbeat.beat()

    with extender.attach(message, heartbeat, visibility_timeout=60):
        until(lambda: clock.sleepers == 1)
        asyncio.run(beat())
        assert message.tries == 0
        clock.advance("30s")
        until(lambda: message.extended == [(30, 60)])
    extender.close()


@pytest.mark.parametrize(
    ("enabled", "count", "visibility"), [(False, 1, 60), (True, 0, 60), (True, 1, 0)], ids=["off", "empty", "nobodys"]
)
def test_where_there_is_nothing_to_keep_it_does_nothing(
    clock: FakeClock, heartbeat: Heartbeat, enabled: bool, count: int, visibility: float
) -> None:
    batch, before = [Kept(clock)] * count, watches()
    extender = LeaseExtender(LeaseExtenderConfig(enabled=enabled), clock=clock)
    with extender.attach(batch, heartbeat, visibility_timeout=visibility):
        clock.advance("60s")
        heartbeat.beat()
        assert not watches() - before
    assert all(message.tries == 0 for message in batch)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"interval": 0}, "interval"),
        ({"extension": -1}, "extension"),
        ({"silence": float("nan")}, "silence"),
        ({"interval": 300}, "extension"),
        ({"interval": "60"}, "interval"),
    ],
)
def test_times_that_cannot_be_are_refused(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{field}: "):
        LeaseExtenderConfig(**wrong)
