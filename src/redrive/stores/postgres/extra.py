"""Whether psycopg is there: said when a store is made, and not when it is first used."""

from __future__ import annotations

from importlib.util import find_spec

from redrive.errors import MissingExtra


def check_extra() -> None:
    """Without importing it, which takes its time."""
    if find_spec("psycopg") is None:
        raise MissingExtra(
            "PostgreSQL cannot be used: there is no psycopg", field="store", hint='pip install "redrive[postgres]"'
        )
