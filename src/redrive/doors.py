"""Registration of doors: packages that give the items of their queues a form and a command line, such as mailboxes.

A door describes itself in one `Door`. The packages of redrive that have a module `door` are doors; a program adds its
own with `register`, or an installed package by an entry point of the group `redrive.doors`. No layer lists them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ENTRY_POINTS = "redrive.doors"
BUILT_IN = tuple(each.name for each in Path(__file__).parent.iterdir() if (each / "door.py").is_file())
"""Packages of redrive that are doors."""


class Section(NamedTuple):
    """A section of redrive.toml: the struct of its values, and a settings.model.Field for each of them."""

    kind: type[Any]
    fields: tuple[Any, ...]


class Group(NamedTuple):
    """A group of commands: "module:attribute" of the click group, and one line about it for `redrive -h`."""

    place: str
    summary: str


class Door(NamedTuple):
    """All parts but the name are optional.

    `start`: what serves one of its queues, with `{queue}` for the name. `exits`: errors with the exit code and the word
    with which a command ends; others end with 1. `section`: makes its settings section, which has the door's name.
    `opened`: runs with the app and its store after an app of this process was opened. `check`: finds problems of its
    queues (office.health.Problem), from the store and their names. `metrics`: names of its metrics, without prefix.
    `body`: what a payload carries, without the door's own fields; `with_body`: that payload with another body.
    `receives`: its items are received, not handled, so that no policy judges them.
    """

    name: str
    start: str = ""
    exits: Mapping[type[BaseException], tuple[int, str]] = {}
    section: Callable[[], Section] | None = None
    groups: Mapping[str, Group] = {}
    opened: Callable[[Any, Any], Awaitable[None]] | None = None
    check: Callable[[Any, tuple[str, ...]], Awaitable[Iterable[Any]]] | None = None
    metrics: tuple[str, ...] = ()
    body: Callable[[bytes], bytes] | None = None
    with_body: Callable[[bytes, bytes], bytes] | None = None
    receives: bool = False


_registered: dict[str, Door] = {}


def register(door: Door) -> Door:
    """Make the door known in this process; one of the same name is replaced."""
    _registered[door.name] = door
    every.cache_clear()
    return door


def registered() -> tuple[Door, ...]:
    """The doors that this process has loaded."""
    return tuple(_registered.values())


@cache
def every() -> tuple[Door, ...]:
    """The doors of redrive and those that were registered, by name."""
    for name in BUILT_IN:
        made: Door = import_module(f"redrive.{name}.door").door
        _registered.setdefault(made.name, made)
    return tuple(sorted(_registered.values(), key=lambda door: door.name))


def loaded(name: str) -> Door | None:
    """The door of that name, if this process has loaded it."""
    return _registered.get(name)


def find(name: str) -> Door | None:
    """The door of that name. One that is not built in is looked for among the installed packages, which reads files."""
    every()
    if name and name not in _registered:
        from importlib.metadata import entry_points

        for point in entry_points(group=ENTRY_POINTS, name=name):
            register(point.load())
    return _registered.get(name)
