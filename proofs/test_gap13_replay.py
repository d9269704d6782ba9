"""Gap 13 replay beside fresh work. Thousands of replayed letters do not delay new items."""

from __future__ import annotations

import pytest

from tests.promises.test_retry_lane import replay_beside_fresh_work
from tests.support.lab import Lab
from tests.support.rig.size import REPLAYED, proof_size

SIZE = f"{REPLAYED[proof_size()]:,} letters"


@pytest.mark.timeout(1800)
async def test_gap13_a_replay_does_not_hold_up_fresh_work(memory_lab: Lab) -> None:
    await replay_beside_fresh_work(memory_lab, REPLAYED[proof_size()])
