"""R24 keys. A dedupe key lets in one of 64, order keys are never overtaken, limits are never exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promises.test_r24_limits import Run as Limits
from tests.promises.test_r24_lines import Run as Order
from tests.promises.test_r24_twins import handles, one_each
from tests.support.lab import Lab
from tests.support.rig.keyed import Mode
from tests.support.rig.size import LIMITED, LINES, TWINS, proof_size
from tests.support.stores import STORES

SIZE = f"{TWINS[proof_size()]} dedupe keys, {LINES[proof_size()].keys} order keys of {LINES[proof_size()].items} items"

pytestmark = pytest.mark.timeout(1800)


async def test_r24_limits_hold_for_the_whole_fleet(memory_lab: Lab) -> None:
    await Limits(memory_lab, LIMITED[proof_size()], seed=1).play()


@pytest.mark.parametrize("mode", ["block", "park", "skip"])
async def test_r24_nobody_overtakes(memory_lab: Lab, mode: Mode) -> None:
    await Order(memory_lab, mode, LINES[proof_size()], seed=1).play()


@pytest.mark.parametrize("kind", STORES)
async def test_r24_one_of_all_who_put_a_key_is_let_in(kind: str, tmp_path: Path) -> None:
    async with handles(kind, tmp_path) as stores:
        await one_each(stores, TWINS[proof_size()])
