"""The page names everything that a user can meet in the kit."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from redrive import testing
from redrive.testing import FakeClock, FaultyStore, blocking, plugin

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
FUNCTIONS = [name for name in testing.__all__ if inspect.isfunction(getattr(testing, name))]


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


FIXTURES = [name for name, value in vars(plugin).items() if name.startswith("redrive_") and callable(value)]


def test_every_name_is_on_the_page() -> None:
    names = {*testing.__all__, *blocking.__all__, *FIXTURES, *testing.Fault.__members__, *public(FakeClock)}
    assert names <= set(re.findall(r"\w+", PAGE))


@pytest.mark.parametrize("name", ["next", "at", "fail", "heal", "hold", "crash_at", "calls_of"])
def test_every_script_of_a_faulty_store_is_on_the_page(name: str) -> None:
    assert hasattr(FaultyStore, name)
    assert f"`{name}(" in PAGE or f", `{name}(" in PAGE


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_signature_is_in_the_table(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}\((.*?)\)` \|", PAGE, re.MULTILINE)
    shown = [part.strip() for part in row.split(",") if part.strip() != "*"]
    parameters = inspect.signature(getattr(testing, name)).parameters.values()
    assert [part.partition("=")[0] for part in shown] == [each.name for each in parameters]
    for part, each in zip(shown, parameters, strict=True):
        default = part.partition("=")[2].replace("_", "")
        if default not in ("", "…"):
            assert default == str(each.default), part


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) == 4
