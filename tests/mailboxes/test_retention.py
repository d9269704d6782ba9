"""Retention of dead-letter mailboxes."""

from __future__ import annotations

from redrive.core.item import Millis
from redrive.core.states import Disposition
from redrive.mailboxes.letters.dead_letter_view import expire
from redrive.mailboxes.metrics import MailboxMetrics
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from tests.engine.test_letter_source import ROUTE, die

DAY: Millis = 86_400_000


async def test_letters_expire_one_by_one_by_their_own_age(clock: FakeClock) -> None:
    store = await MemoryStore(clock).open()
    await die(store, "old")
    await die(store, "held")
    clock.advance(20 * DAY)
    await die(store, "young")
    clock.advance(11 * DAY)
    await store.lease_letters(["held"], "somebody", 60_000)
    metrics = MailboxMetrics()
    assert await expire(store, ROUTE, 30 * DAY, metrics=metrics) == 1
    assert metrics.counts["expired"] == {("requests", "builtins.ValueError"): 1}
    found = {each: (await store.get(each)).item.letter for each in ("old", "held", "young")}
    assert {each: letter.disposition for each, letter in found.items() if letter is not None} == {
        "old": Disposition.TRASH,
        "held": Disposition.OPEN,
        "young": Disposition.OPEN,
    }
    (deed,) = (await store.get("old")).deeds
    assert (deed.change, deed.actor, deed.reason) == ("discard", "retention", "kept in requests-dlq for 30d")
    clock.advance(60_000)
    assert await expire(store, ROUTE, 30 * DAY) == 1
