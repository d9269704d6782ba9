"""What the verbs take and give survives a wire: the machine, and a sample of the suite, through bytes."""

import pytest

from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import (  # noqa: F401 - what neither the sample nor the machine sends
    test_backup_is_made_or_refused,
    test_beat_shows_the_worker_with_its_facts,
    test_elect_makes_one_leader,
    test_find_agrees_with_the_one_evaluator,
    test_gate_is_written_by_versions,
    test_get_shows_each_attempt_as_it_was_given,
    test_journal_gives_back_what_was_appended,
    test_put_keeps_every_byte,
    test_take_in_keeps_all_the_evidence,
)
from redrive.testing.conformance.kit import OpenStore
from redrive.testing.conformance.machine import machine_of, run_machine
from redrive.testing.proxy import EncodingProxy
from tests.stores.sample import *  # noqa: F403 - the tests and their fixtures


@pytest.fixture
async def open_store(clock: FakeClock) -> OpenStore:
    store = MemoryStore(clock=clock)

    async def open_store() -> Store:
        return await EncodingProxy(store).open()

    return open_store


@pytest.mark.slow
def test_machine_smoke() -> None:
    run_machine(machine_of(lambda _, clock: EncodingProxy(MemoryStore(clock=clock))), "smoke")
