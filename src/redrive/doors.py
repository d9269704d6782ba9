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
COMMANDS = frozenset(
    (
        *("init", "demo", "status", "top", "health", "doctor", "queue", "item", "letters", "replay", "causes", "view"),
        *(
            "worker",
            "route",
            "gate",
            "schedule",
            "policy",
            "alert",
            "db",
            "audit",
            "config",
            "version",
            "completion",
            "help",
        ),
    )
)
"""The commands of redrive that belong to no door."""
SETTINGS = frozenset({"store", "actor", "max_payload", "log", "worker", "alerts", "encryption_keys", "release"})
"""The first words of redrive's own settings."""
CODES = range(1, 126)
"""Exit codes that a door may use: a shell gives the higher ones a meaning of its own."""


class BadDoor(ValueError):
    """A door that cannot be registered. The message names the field, the value and the fix."""


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
    """Make the door known in this process, or raise BadDoor. To register the same object again changes nothing."""
    _check_parts(door)
    for other in every():
        if other is not door:
            _check_names(door, other)
    _registered[door.name] = door
    every.cache_clear()
    return door


def _need(valid: object, field: str, needed: str, value: object) -> None:
    if not valid:
        raise BadDoor(f"{field}: must be {needed}, got {value!r}")


def _check_parts(door: Any) -> None:
    _need(isinstance(door, Door), "door", "a redrive.doors.Door", door)
    _need(isinstance(door.name, str) and door.name.strip(), "name", "a text that is not empty", door.name)
    if door.name in COMMANDS | SETTINGS:
        raise BadDoor(f"name: {door.name!r} is a command or a setting of redrive (choose another name)")
    _need(isinstance(door.start, str), "start", "a text", door.start)
    for field in ("section", "opened", "check", "body", "with_body"):
        part = getattr(door, field)
        _need(part is None or callable(part), field, "a function or None", part)
    _need(isinstance(door.groups, Mapping), "groups", "a mapping of names to redrive.doors.Group", door.groups)
    for name, group in door.groups.items():
        _need(isinstance(name, str) and name.strip(), "groups", "a mapping with names as keys", name)
        _need(isinstance(group, Group), f"groups[{name!r}]", "a redrive.doors.Group", group)
        _need(":" in str(group.place), f"groups[{name!r}].place", 'a text like "module:attribute"', group.place)
        if name in COMMANDS:
            raise BadDoor(f"groups: {name!r} is a command of redrive (choose another name)")
    metrics = isinstance(door.metrics, tuple) and all(isinstance(each, str) for each in door.metrics)
    _need(metrics, "metrics", "a tuple of texts", door.metrics)
    _need(isinstance(door.exits, Mapping), "exits", "a mapping of exception classes to (code, word)", door.exits)
    for kind, ending in door.exits.items():
        _need(isinstance(kind, type) and issubclass(kind, BaseException), "exits", "keyed by exception classes", kind)
        _check_ending(f"exits[{kind.__name__}]", ending)


def _check_ending(field: str, ending: Any) -> None:
    _need(isinstance(ending, tuple) and len(ending) == 2, field, "a tuple (code, word)", ending)
    code, word = ending
    _need(type(code) is int and code in CODES, field, f"a code from {CODES[0]} to {CODES[-1]}", code)
    _need(isinstance(word, str) and word.strip(), field, "a code with a word that is not empty", word)


def _check_names(door: Door, other: Door) -> None:
    if door.name == other.name:
        raise BadDoor(f"name: another door is registered as {door.name!r} (choose another name, or register it once)")
    for name in door.groups:
        if name in other.groups:
            raise BadDoor(f"groups: {name!r} is a command of the door {other.name!r} (choose another name)")


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
