"""SQL lives in files named after the verb, `sql/<engine>/<verb>.sql`; this reads them.

A file opens with its contract and holds named statements, each after a line `-- :name something`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

_MARK = "-- :name "


@cache
def load(engine: str, verb: str) -> Mapping[str, str]:
    """The statements of a verb by name, without comments."""
    statements: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _text(engine, verb).splitlines():
        if line.startswith(_MARK):
            lines = statements.setdefault(line.removeprefix(_MARK).strip(), [])
        elif line.strip() and not line.lstrip().startswith("--"):
            lines.append(line)
    return {name: "\n".join(body).rstrip("; \n") for name, body in statements.items()}


def load_all(engine: str) -> None:
    """Beforehand, for those who must not read files later. What is never asked for is not taken apart."""
    for file in resources.files(__package__).joinpath("sql", engine).iterdir():
        if file.name.endswith(".sql"):
            _text(engine, file.name.removesuffix(".sql"))


@cache
def _text(engine: str, verb: str) -> str:
    return resources.files(__package__).joinpath("sql", engine, f"{verb}.sql").read_text(encoding="utf-8")
