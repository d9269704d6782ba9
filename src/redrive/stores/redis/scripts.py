"""Lua lives in files named after the verb, `lua/<verb>.lua`; this reads them and joins each with what it uses.

A file that is a script begins with a shebang, whose flags tell the server what it may do, and its contract. A line
`-- Uses: a b` names the parts that stand between the prelude and the script. Of `x(a b)` nothing is made before it is
needed: `x()` gives a table of the functions of both, and `x_made` is that table or nil. What nearly no call needs would
otherwise cost each of them. Names in capitals that stand for whole numbers (`local READY, LEASED = 1, 2`) are written
out: a script can have two hundred variables, and a number is faster.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

_SHEBANG = "#!lua"
_USES = "-- Uses: "
_PART = re.compile(r"(\w+)(?:\(([\w ]+)\))?")
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_NAME = r"[A-Z][A-Z_0-9]*"
_NUMBERS = re.compile(rf"^local ({_NAME}(?:, {_NAME})*) = (\d+(?:, \d+)*)$", re.MULTILINE)
_WORDS = re.compile(rf"('(?:\\.|[^'\\\n])*'|--[^\n]*)|\b({_NAME})\b")
"""Texts and comments, which stay as they are, and names."""


class Script(NamedTuple):
    name: str
    text: bytes
    sha: bytes


class Scripts(Mapping[str, Script]):
    """Each is made when it is asked for the first time, which reads files: few processes need them all."""

    def __init__(self) -> None:
        self.at_hand: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        found = self.at_hand.get(name)
        if found is None:
            found = self.at_hand[name] = made(name, _joined(name))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(joined())

    def __len__(self) -> int:
        return len(joined())


@cache
def load() -> Mapping[str, Script]:
    """By name."""
    return Scripts()


@cache
def joined() -> Mapping[str, str]:
    """The texts of all scripts, each with what it uses, as they stand in their files."""
    names = [file.name.removesuffix(".lua") for file in _folder().iterdir() if file.name.endswith(".lua")]
    return {name: _joined(name) for name in names if _text(name).startswith(_SHEBANG)}


@cache
def _text(name: str) -> str:
    return _folder().joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _folder() -> Traversable:
    return resources.files("redrive.stores").joinpath("lua")


def _joined(name: str) -> str:
    shebang, _, body = _text(name).partition("\n")
    uses = [line.removeprefix(_USES) for line in body.splitlines() if line.startswith(_USES)]
    parts = [_late(part, [_text(one) for one in late.split()]) if late else _text(part) for part, late in _parts(uses)]
    return "\n".join([shebang, _text("prelude"), *parts, body])


def _parts(uses: list[str]) -> list[tuple[str, str]]:
    return [(part, late) for line in uses for part, late in _PART.findall(line)]


def _late(name: str, texts: list[str]) -> str:
    """A function that makes the parts when it is called for the first time."""
    text = "\n".join(texts)
    table = ", ".join(f"{function} = {function}" for function in _FUNCTION.findall(text))
    return (
        f"local {name}_made = nil\nlocal function {name}()\nif {name}_made then return {name}_made end\n"
        f"{text}\n{name}_made = {{{table}}}\nreturn {name}_made\nend\n"
    )


def made(name: str, text: str) -> Script:
    sent = _written_out(text).encode()
    return Script(name, sent, hashlib.sha1(sent).hexdigest().encode())  # noqa: S324 - the server's name for it


def _written_out(text: str) -> str:
    """Lines stay where they are, for the server names them."""
    values: dict[str, str] = {}
    for names, numbers in _NUMBERS.findall(text):
        values |= zip(names.split(", "), numbers.split(", "), strict=True)
    return _WORDS.sub(lambda word: word[1] or values.get(word[2], word[2]), _NUMBERS.sub("", text))
