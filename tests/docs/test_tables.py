"""What is made from the code is what the pages hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redrive import errors
from redrive.cli.exits import Exit
from redrive.core.select import FIELDS, MEANING
from redrive.core.states import TRANSITIONS
from redrive.stores.base import Store
from tests.docs.pages import name_of, pages
from tests.docs.tables import (
    EVENT_SAID,
    EXITS,
    MARKED,
    PLAIN_VERBS,
    SUMMARIES,
    TABLES,
    WHEN,
    error_classes,
    filled,
    summaries_module,
)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_tables_of_a_page_are_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), f"run `python -m tests.docs.tables` and look at the change of {page.name}"


def test_lists_of_commands_show_the_help_that_each_has() -> None:
    assert SUMMARIES.read_text(encoding="utf-8") == summaries_module(), "run `python -m tests.docs.tables`"


def test_every_table_is_on_some_page() -> None:
    used = [found["name"] for page in pages() for found in MARKED.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(used) == sorted(TABLES)


def test_every_error_is_in_the_tree() -> None:
    tree = (errors.__doc__ or "").partition("\n\n")[2]
    drawn = re.findall(r"^[│├└─ ]*(\w+)", tree, re.MULTILINE)
    assert sorted(drawn) == sorted(error_classes())


def test_words_that_the_tables_add_are_about_things_that_exist() -> None:
    assert WHEN.keys() == TRANSITIONS.keys()
    assert MEANING.keys() == FIELDS.keys()
    assert EXITS.keys() == set(Exit)
    assert not [name for name in PLAIN_VERBS if getattr(Store, name).__doc__], "it has words of its own now"
    assert not [kind.__name__ for kind in EVENT_SAID if kind.__doc__], "it has words of its own now"
