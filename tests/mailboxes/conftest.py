"""Mailboxes on every store, with time that passes when a test says so.

    def test_something(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
        requests = mailboxes(kind)("requests", max_size=2)

All mailboxes of one kind in one test are on one store. `kind` is parametrised over all stores; a test that needs one
store only calls `mailboxes("memory")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from redrive.core.item import Item
from redrive.mailboxes import StoreMailbox, open_mailbox
from redrive.testing import FakeClock
from tests.support.families import pytest_generate_tests
from tests.support.stores import EACH, StoreUrl

__all__ = ["pytest_generate_tests"]
Opener = Callable[..., StoreMailbox[Any, Any]]
Openers = Callable[[str], Opener]


@pytest.fixture(params=EACH)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def mailboxes(same_url: StoreUrl, clock: FakeClock) -> Iterator[Openers]:
    """Call it with a kind for what opens mailboxes on a store of that kind. All are closed with the test."""
    with ExitStack() as stack:

        def opener(kind: str) -> Opener:
            def open_one(name: str, **options: Any) -> StoreMailbox[Any, Any]:
                chosen = {"clock": clock, **options}
                mailbox: StoreMailbox[Any, Any] = open_mailbox(name, same_url(kind), **chosen)
                return stack.enter_context(mailbox)

            return open_one

        yield opener


def item_of(mailbox: StoreMailbox[Any, Any], message_id: str) -> Item:
    """What the store has of a message, whatever became of it."""
    place = mailbox.shared
    return place.call(place.store.get, message_id).item
