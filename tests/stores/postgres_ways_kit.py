"""The conformance suite on PostgreSQL in other ways than the usual one: a few tests of it always, all under `prove`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.support.servers import shared
from tests.support.servers.schemas import Schemas, open_once

Fresh = Callable[[], AbstractContextManager[str]]
"""The URL of a store that nobody has used yet, for as long as a test takes."""
Way = Callable[[], AbstractContextManager[Fresh]]

SAMPLE = frozenset(
    {
        "test_put_takes_any_text_as_id_and_queue",
        "test_lease_gives_equally_due_in_the_order_of_put",
        "test_lease_with_the_same_nonce_leaves_out_what_is_no_longer_held",
        "test_settle_refuses_one_and_applies_the_others",
        "test_suspects_of_any_want_come_before_plain_items",
        "test_find_cursors_hold_on_another_handle",
        "test_amend_writes_who_did_it_into_item_and_audit",
        "test_causes_lose_what_is_no_longer_open",
        "test_prune_takes_done_cancelled_and_trash",
        "test_documents_are_written_all_or_none",
        "test_race_of_the_same_settle_is_applied_once",
        "test_wait_returns_on_a_put",
    }
)
"""One test for each way in which a verb speaks to the server: a function, a transaction, a look, a wait."""
LEFT_OUT = "not prove"
"""In the marks of a run that does without them."""


def by_way(metafunc: pytest.Metafunc, ways: Mapping[str, Way]) -> None:
    """To be called by a module's pytest_generate_tests. Marks are for each module, so not on the shared functions."""
    if "way" in metafunc.fixturenames:
        mark = pytest.mark.slow if metafunc.definition.originalname in SAMPLE else pytest.mark.prove
        given = [pytest.param(way, id=name, marks=mark) for name, way in ways.items()]
        if mark.name == "prove" and LEFT_OUT in metafunc.config.getoption("markexpr"):
            # To make thousands of tests that are not run takes seconds of every run: one of each stands for all.
            given = given[:1]
        metafunc.parametrize("way", given, indirect=True)


@contextmanager
def on(where: shared.Shared) -> Iterator[Fresh]:
    made = Schemas(where, open_once)
    try:
        yield made.fresh
    finally:
        made.close()


@pytest.fixture(scope="module")
def opened_ways() -> Iterator[Callable[[Way], Fresh]]:
    """Each once: tests come in any order, and a fixture with parameters would be made again for most of them."""
    with ExitStack() as stack:
        yield functools.cache(lambda way: stack.enter_context(way()))


@pytest.fixture
def way(request: pytest.FixtureRequest, opened_ways: Callable[[Way], Fresh]) -> Fresh:
    return opened_ways(request.param)


@pytest.fixture
def url(way: Fresh) -> Iterator[str]:
    with way() as url:
        yield url


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
async def open_store(url: str, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []

    async def open_store() -> Store:
        handles.append(store_from_url(url, clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()
