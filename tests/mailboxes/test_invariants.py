"""The eight invariants of a mailbox, whatever is done in whatever order, by two receivers that know nothing of each
other.

1. A message is in exactly one place: visible, in hand, or gone.      5. Handles are unique, one for each delivery.
2. Who holds the current handle can use it, and nobody else can.       6. Nothing is visible twice.
3. Delivery counts strictly grow, also when a message comes back.      7. Every message that is there has its body.
4. No message is lost.                                                 8. A message that is gone stays gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redrive.mailboxes import Message, ReceiptHandleExpiredError, StoreMailbox, open_mailbox
from redrive.testing import FakeClock
from tests.support.stores import STORES, fresh_store

SECONDS = st.sampled_from([0, 1, 5, 30, 60])


@dataclass
class Known:
    """What the model knows of a message: from when it is visible, and the one handle that counts until then."""

    body: int
    visible_at: int
    deliveries: int = 0
    handle: str | None = None
    gone: bool = False


class Mailboxes(RuleBasedStateMachine):
    kind = "memory"
    folder = Path()

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.clock = FakeClock()
        self.known: dict[str, Known] = {}
        self.handles: set[str] = set()
        self.hands: list[Message[Any, Any]] = []
        self.numbers: Iterator[int] = count()

    @initialize()
    def begin(self) -> None:
        url = self.stack.enter_context(fresh_store(self.kind, self.folder))
        # Another spelling of the same store is another place, as in another process. Memory is in one.
        other = {"sqlite": "?durability=power-loss", "redis": "&pool=4", "postgres": "&pool=4"}.get(self.kind, "")
        self.boxes: list[StoreMailbox[Any, Any]] = [
            self.stack.enter_context(open_mailbox("box", address, clock=self.clock)) for address in (url, url + other)
        ]

    @property
    def now(self) -> int:
        return self.clock.now()

    def visible(self) -> set[str]:
        return {key for key, known in self.known.items() if not known.gone and known.visible_at <= self.now}

    @rule(which=st.integers(0, 1))
    def send(self, which: int) -> None:
        body = next(self.numbers)
        key = self.boxes[which].send(body)
        assert key not in self.known
        self.known[key] = Known(body, self.now)

    @rule(which=st.integers(0, 1), limit=st.integers(1, 10), timeout=SECONDS)
    def receive(self, which: int, limit: int, timeout: int) -> None:
        expected = self.visible()
        messages = self.boxes[which].receive(limit, timeout)
        ids = {message.id for message in messages}
        assert len(ids) == len(messages) == min(limit, len(expected))
        assert ids <= expected
        for message in messages:
            known = self.known[message.id]
            assert message.delivery_count == known.deliveries + 1
            assert message.receipt_handle not in self.handles
            assert message.body == known.body
            self.handles.add(message.receipt_handle)
            known.deliveries, known.handle = message.delivery_count, message.receipt_handle
            known.visible_at = self.now + 1000 * timeout
            self.hands.append(message)

    def held(self, message: Message[Any, Any]) -> bool:
        known = self.known[message.id]
        return not known.gone and known.handle == message.receipt_handle and known.visible_at > self.now

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.hands))
        if self.held(message):
            message.acknowledge()
            self.known[message.id].gone = True
        else:
            with pytest.raises(ReceiptHandleExpiredError):
                message.acknowledge()

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), timeout=SECONDS)
    def nack(self, data: st.DataObject, timeout: int) -> None:
        message = data.draw(st.sampled_from(self.hands))
        if self.held(message):
            message.nack(timeout)
            known = self.known[message.id]
            known.visible_at, known.handle = self.now + 1000 * timeout, None
        else:
            with pytest.raises(ReceiptHandleExpiredError):
                message.nack(timeout)

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), timeout=SECONDS)
    def extend(self, data: st.DataObject, timeout: int) -> None:
        message = data.draw(st.sampled_from(self.hands))
        if self.held(message):
            message.extend_visibility(timeout)
            known = self.known[message.id]
            known.visible_at = max(known.visible_at, self.now + 1000 * timeout)
        else:
            with pytest.raises(ReceiptHandleExpiredError):
                message.extend_visibility(timeout)

    @rule(seconds=st.sampled_from([1, 4, 29, 31, 61]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(1000 * seconds)

    @invariant()
    def nothing_is_lost_and_nothing_is_there_twice(self) -> None:
        if self.known:
            there = sum(not known.gone for known in self.known.values())
            assert [box.approximate_count() for box in self.boxes] == [there, there]

    def teardown(self) -> None:
        self.stack.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_i1_i8_the_invariants_of_a_mailbox(kind: str, tmp_path: Path) -> None:
    machine = type("Mailboxes", (Mailboxes,), {"kind": kind, "folder": tmp_path})
    examples = 25 if kind == "memory" else 3
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None))
