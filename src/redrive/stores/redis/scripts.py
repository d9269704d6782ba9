"""Lua lives in files named after the verb, `lua/<verb>.lua`; this reads them all and joins each with what it uses.

A file that is a script begins with a shebang, whose flags tell the server what it may do, and its contract. A line
`-- Uses: a b` names the parts that stand between the prelude and the script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

_SHEBANG = "#!lua"
_USES = "-- Uses: "


class Script(NamedTuple):
    name: str
    text: bytes
    sha: bytes


@cache
def load() -> Mapping[str, Script]:
    """By name. Reads files the first time."""
    folder = resources.files("redrive.stores").joinpath("lua")
    files = {
        file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }
    return {name: _joined(name, files) for name, text in files.items() if text.startswith(_SHEBANG)}


def _joined(name: str, files: Mapping[str, str]) -> Script:
    shebang, _, body = files[name].partition("\n")
    uses = [line.removeprefix(_USES).split() for line in body.splitlines() if line.startswith(_USES)]
    parts = ["prelude", *(part for line in uses for part in line)]
    text = "\n".join([shebang, *(files[part] for part in parts), body]).encode()
    return Script(name, text, hashlib.sha1(text).hexdigest().encode())  # noqa: S324 - the server's name for it
