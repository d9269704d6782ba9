"""R23 herd and fairness. Retries due at once are spread; a dead endpoint or a flood does not delay the others."""

from __future__ import annotations

import pytest

from tests.promises.test_r23_herd import dead_endpoint, flood, herd
from tests.support.lab import Lab
from tests.support.rig.size import CROWDED, HERD, proof_size

SIZE = f"{HERD[proof_size()]:,} retries at once, {CROWDED[proof_size()]:,} items of a flood"

pytestmark = pytest.mark.timeout(1800)


async def test_r23_a_herd_of_retries_is_spread(memory_lab: Lab) -> None:
    await herd(memory_lab, HERD[proof_size()])


async def test_r23_a_dead_endpoint_does_not_hold_up_the_healthy(memory_lab: Lab) -> None:
    await dead_endpoint(memory_lab, CROWDED[proof_size()])


async def test_r23_a_tenant_that_floods_does_not_hold_up_the_others(memory_lab: Lab) -> None:
    await flood(memory_lab, CROWDED[proof_size()])
