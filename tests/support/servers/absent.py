"""What a test says when there is no server for it: never a silent skip, and in CI a failure."""

from __future__ import annotations

import os


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def absent(what: str, hint: str, *, another: bool = False) -> BaseException:
    """To be raised. Where `another` of its kind runs the same tests, it is told and no failure."""
    import pytest  # late: the benchmarks start servers too, and without it

    text = f"there is no {what} for this test: {hint}"
    return pytest.fail.Exception(text, pytrace=False) if in_ci() and not another else pytest.skip.Exception(text)
