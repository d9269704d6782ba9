"""What a test raises when its server is not there: a skip, told once at the end of the run; in CI a failure."""

from __future__ import annotations

import os


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def absent(what: str, hint: str, *, another_version: bool = False) -> BaseException:
    """To be raised. A version beside the one that is there is no failure: no system brings all of them."""
    import pytest  # late: the benchmarks start servers too, and without it

    text = f"there is no {what}: {hint}"
    if in_ci() and not another_version:
        return pytest.fail.Exception(text, pytrace=False)
    return pytest.skip.Exception(text)
