"""What `redrive.mailboxes` has: every name is there, for people, for type checkers, and for nothing while unused."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from redrive import errors, mailboxes
from redrive.mailboxes import agents


def test_every_public_name_is_there_for_people_and_type_checkers() -> None:
    assert dir(mailboxes) == sorted(mailboxes.__all__)
    assert len(set(mailboxes.__all__)) == len(mailboxes.__all__)
    for name in mailboxes.__all__:
        assert getattr(mailboxes, name) is not None
    source = ast.parse(Path(mailboxes.__file__ or "").read_text(encoding="utf-8"))
    checked = next(node for node in source.body if isinstance(node, ast.If))
    told = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == {*mailboxes.__all__, "*"}


def test_the_names_of_agents_are_apart_and_imports_from_before_work() -> None:
    assert len(mailboxes.__all__) < 35
    assert not set(agents.__all__) & set(mailboxes.__all__)
    for name in agents.__all__:
        assert getattr(mailboxes, name) is getattr(agents, name)


def test_every_error_of_mailboxes_can_be_had_here() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MailboxError)]
    assert {kind.__name__ for kind in kinds} <= set(mailboxes.__all__)
    assert len(kinds) == 10


@pytest.mark.slow
def test_importing_it_costs_next_to_nothing() -> None:
    code = "import sys, redrive.mailboxes; sys.exit(any(name in sys.modules for name in ('asyncio', 'msgspec')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
