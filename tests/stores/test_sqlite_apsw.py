"""What the binding of `redrive[sqlite]` does itself: values, row counts, functions, locks, interrupts and backups."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import (  # noqa: F401 - beside the sample
    test_backup_is_made_or_refused,
    test_check_finds_nothing_in_what_the_verbs_made,
    test_find_agrees_with_the_one_evaluator,
    test_get_shows_each_attempt_as_it_was_given,
    test_large_payloads_are_the_same_wherever_they_are_read,
    test_put_is_seen_through_every_handle,
    test_put_keeps_every_byte,
    test_put_survives_reopening,
    test_race_of_eight_workers_partitions_the_queue,
    test_race_of_everything_keeps_the_counters_true,
    test_settle_cut_off_is_all_or_none,
    test_sweep_goes_in_bites,
    test_tally_equals_a_full_count_after_anything,
)
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.stores.sample import *  # noqa: F403 - the tests and their fixtures
from tests.support.templates import prepared


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
def database(quick_path: Path) -> Path:
    return prepared(quick_path / "redrive.db")


@pytest.fixture
async def open_store(database: Path, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[SqliteStore] = []

    async def open_store() -> SqliteStore:
        handles.append(SqliteStore(database, clock=clock, binding="apsw"))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()
