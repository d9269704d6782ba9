"""The suite that every store passes. A new engine's test file is one fixture and one import:

    from redrive.testing.conformance import *

    @pytest.fixture
    async def open_store(tmp_path, clock):
        handles = []
        async def open_store():
            handles.append(await MyStore(tmp_path / "db", clock=clock).open())
            return handles[-1]
        yield open_store
        for handle in handles:
            await handle.close()

Each call of `open_store` opens another handle on the same data. The suite brings the fixtures `clock` (a FakeClock) and
`world`. An engine that can do more than memory says so in a fixture `capabilities`: a frozen set of "durable" (a handle
opened again finds the data) and "handles" (several handles, each with a life of its own). A test is skipped only for a
capability that is not declared. A change of what stores do is a change of this suite, never
of one engine's tests. The state machine that compares an engine with the memory store is in `conformance.machine`.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "after",
    "after_order",
    "amend",
    "cancel",
    "capacity",
    "changes",
    "configure",
    "cursors",
    "dedupe",
    "documents",
    "edits",
    "encryption",
    "extend",
    "families",
    "fields",
    "filters",
    "find",
    "fresh_work",
    "gates",
    "history",
    "imports",
    "journal",
    "kinds",
    "kit",
    "large",
    "laws",
    "lease",
    "lease_item",
    "letter_ends",
    "letter_leases",
    "life",
    "limits",
    "limits_races",
    "machine",
    "model",
    "moves",
    "oldest",
    "order",
    "order_acts",
    "parking",
    "priority",
    "prune",
    "put",
    "queue_settings",
    "races",
    "rate",
    "recall",
    "reclaim",
    "reservations",
    "retention",
    "routes",
    "settle",
    "stage",
    "stage_letters",
    "steps",
    "suspects",
    "tags",
    "tally",
    "terms_races",
    "trash",
    "upkeep",
    "wait",
    "waiting",
    "workers",
)
# Before the parts are imported: pytest explains only asserts that it has rewritten.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from redrive.testing.conformance.after import *  # noqa: E402,F403
from redrive.testing.conformance.after_order import *  # noqa: E402,F403
from redrive.testing.conformance.amend import *  # noqa: E402,F403
from redrive.testing.conformance.cancel import *  # noqa: E402,F403
from redrive.testing.conformance.capacity import *  # noqa: E402,F403
from redrive.testing.conformance.changes import *  # noqa: E402,F403
from redrive.testing.conformance.configure import *  # noqa: E402,F403
from redrive.testing.conformance.cursors import *  # noqa: E402,F403
from redrive.testing.conformance.dedupe import *  # noqa: E402,F403
from redrive.testing.conformance.documents import *  # noqa: E402,F403
from redrive.testing.conformance.edits import *  # noqa: E402,F403
from redrive.testing.conformance.encryption import *  # noqa: E402,F403
from redrive.testing.conformance.extend import *  # noqa: E402,F403
from redrive.testing.conformance.families import *  # noqa: E402,F403
from redrive.testing.conformance.family_settings import *  # noqa: E402,F403
from redrive.testing.conformance.fields import *  # noqa: E402,F403
from redrive.testing.conformance.filters import *  # noqa: E402,F403
from redrive.testing.conformance.find import *  # noqa: E402,F403
from redrive.testing.conformance.fixtures import clock, world  # noqa: E402
from redrive.testing.conformance.fresh_work import *  # noqa: E402,F403
from redrive.testing.conformance.gates import *  # noqa: E402,F403
from redrive.testing.conformance.history import *  # noqa: E402,F403
from redrive.testing.conformance.imports import *  # noqa: E402,F403
from redrive.testing.conformance.journal import *  # noqa: E402,F403
from redrive.testing.conformance.kinds import *  # noqa: E402,F403
from redrive.testing.conformance.large import *  # noqa: E402,F403
from redrive.testing.conformance.lease import *  # noqa: E402,F403
from redrive.testing.conformance.lease_item import *  # noqa: E402,F403
from redrive.testing.conformance.letter_ends import *  # noqa: E402,F403
from redrive.testing.conformance.letter_leases import *  # noqa: E402,F403
from redrive.testing.conformance.life import *  # noqa: E402,F403
from redrive.testing.conformance.limits import *  # noqa: E402,F403
from redrive.testing.conformance.limits_races import *  # noqa: E402,F403
from redrive.testing.conformance.moves import *  # noqa: E402,F403
from redrive.testing.conformance.oldest import *  # noqa: E402,F403
from redrive.testing.conformance.order import *  # noqa: E402,F403
from redrive.testing.conformance.order_acts import *  # noqa: E402,F403
from redrive.testing.conformance.parking import *  # noqa: E402,F403
from redrive.testing.conformance.priority import *  # noqa: E402,F403
from redrive.testing.conformance.prune import *  # noqa: E402,F403
from redrive.testing.conformance.put import *  # noqa: E402,F403
from redrive.testing.conformance.queue_settings import *  # noqa: E402,F403
from redrive.testing.conformance.races import *  # noqa: E402,F403
from redrive.testing.conformance.rate import *  # noqa: E402,F403
from redrive.testing.conformance.recall import *  # noqa: E402,F403
from redrive.testing.conformance.reclaim import *  # noqa: E402,F403
from redrive.testing.conformance.reservations import *  # noqa: E402,F403
from redrive.testing.conformance.retention import *  # noqa: E402,F403
from redrive.testing.conformance.routes import *  # noqa: E402,F403
from redrive.testing.conformance.settle import *  # noqa: E402,F403
from redrive.testing.conformance.steps import *  # noqa: E402,F403
from redrive.testing.conformance.suspects import *  # noqa: E402,F403
from redrive.testing.conformance.tags import *  # noqa: E402,F403
from redrive.testing.conformance.tally import *  # noqa: E402,F403
from redrive.testing.conformance.terms_races import *  # noqa: E402,F403
from redrive.testing.conformance.trash import *  # noqa: E402,F403
from redrive.testing.conformance.upkeep import *  # noqa: E402,F403
from redrive.testing.conformance.wait import *  # noqa: E402,F403
from redrive.testing.conformance.waiting import *  # noqa: E402,F403
from redrive.testing.conformance.workers import *  # noqa: E402,F403

# Helpers of the parts stay where they are: an engine's file gets the tests and the fixtures they need.
__all__ = ["clock", "world", *sorted(name for name in dir() if name.startswith("test_"))]  # noqa: PLE0604
