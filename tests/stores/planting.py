"""Bugs in SQL, in Lua and in the Python around them, planted for one test and never on disk.

A bug is a change of the texts that a store has loaded, or of a function of its modules. PostgreSQL keeps functions in
the schema, so there the bent ones are made in the schema of the test, and the right ones again when it is over.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from redrive.errors import ConfigError, RedriveError, StoreError
from redrive.stores.postgres import install
from redrive.stores.redis import scripts
from redrive.stores.statements import load
from tests.stores.postgres_kit import schema_of
from tests.support.stores import fresh_store

Patch = Callable[[pytest.MonkeyPatch], None]

_MARK = "\0"


class Edit(NamedTuple):
    """`at`: a file, or a statement of it (`settle/to_ready`). `old` must be there once and only once."""

    at: str
    old: str
    new: str = ""


class Plant(NamedTuple):
    """How a bug comes into one engine. `says`: the words of the error by which it shows, if it is no wrong answer."""

    edits: tuple[Edit, ...] = ()
    patches: tuple[Patch, ...] = ()
    scripts: Mapping[str, str] = {}
    """More of them, by name; for Redis."""
    says: str = ""

    def is_finding(self, error: RedriveError) -> bool:
        """A text that the server does not understand would be found by any test, and so is no bug worth finding."""
        if self.says:
            return self.says in str(error)
        return not isinstance(error, StoreError | ConfigError)


def edited(text: str, edit: Edit) -> str:
    """However the lines are broken."""
    pattern = r"\s+".join(re.escape(word) for word in edit.old.split())
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        pytest.fail(f"the plant no longer fits: {edit.old!r} is {len(found)} times in {edit.at}")
    return text[: found[0].start()] + edit.new + text[found[0].end() :]


class Planted:
    """One plant in the ground, for as long as the `monkeypatch` lasts."""

    def __init__(self, engine: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.plant = plant
        self._functions: dict[tuple[str, str], str] = {}
        for patch in plant.patches:
            patch(monkeypatch)
        if engine == "redis":
            changed = _bent_scripts(plant)
            monkeypatch.setattr(scripts, "load", lambda: changed)
        else:
            for edit in plant.edits:
                self._bend(edit, monkeypatch)

    def _bend(self, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
        verb, _, named = edit.at.partition("/")
        statements = load(self.engine, verb)
        meant = {
            name: self._functions.get((verb, name), text)
            for name, text in statements.items()
            if not named or name == named
        }
        # All at once, for it must be there once in all of them.
        changed = edited(_MARK.join(meant.values()), edit).split(_MARK)
        for (name, text), bent in zip(meant.items(), changed, strict=True):
            if bent == text:
                continue
            if self.engine == "postgres" and (verb, name) in install.FUNCTIONS:
                self._functions[verb, name] = bent
            else:
                monkeypatch.setitem(statements, name, bent)

    @contextlib.contextmanager
    def store(self, folder: Path) -> Iterator[str]:
        """The URL of a fresh store that has the bug."""
        with fresh_store(self.engine, folder) as url:
            if not self._functions:
                yield url
                return
            _make(url, self._functions.values())
            try:
                yield url
            finally:
                # The schema is used again.
                _make(url, [load(self.engine, verb)[name] for verb, name in self._functions])


def _make(url: str, functions: Iterable[str]) -> None:
    text = ";\n".join(functions).replace("{schema}", f'"{schema_of(url)}"')
    plain = urlsplit(url)._replace(query="").geturl()
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(text.encode())


class Bent(scripts.Scripts):
    """Each is made when it is asked for the first time, as the right ones are."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def __getitem__(self, name: str) -> scripts.Script:
        if name not in self.at_hand:
            self.at_hand[name] = scripts.made(name, self._texts[name])
        return self.at_hand[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _bent_scripts(plant: Plant) -> Bent:
    texts = dict(scripts.joined())
    changes: dict[str, tuple[str, str]] = {}
    for edit in plant.edits:
        right, bent = changes.get(edit.at) or (_part(edit.at),) * 2
        changes[edit.at] = (right, edited(bent, edit))
    for at, (right, bent) in changes.items():
        if not any(right in text for text in texts.values()):
            pytest.fail(f"the plant no longer fits: {at} is in no script as it stands in its file")
        texts = {name: text.replace(right, bent) for name, text in texts.items()}
    texts |= {name: f"#!lua\n{_part('prelude')}\n{text}" for name, text in plant.scripts.items()}
    return Bent(texts)


def _part(name: str) -> str:
    """A file of Lua as it stands in every script that uses it: without the first line, if that says what it is."""
    text = resources.files("redrive.stores").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return text.partition("\n")[2] if text.startswith("#!lua") else text
