"""Documents. The examples that kill processes do what their pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import KILLING, ROOT
from tests.docs.test_blocks import folder, forgetful, run_all
from tests.support.warm_python import WarmPython

__all__ = ["folder", "forgetful"]


@pytest.mark.parametrize("name", sorted(KILLING))
async def test_the_blocks_of_a_page_run_in_order(name: str, folder: Path, warm_python: WarmPython) -> None:
    await run_all(ROOT / name, folder, warm_python)
