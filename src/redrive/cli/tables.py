"""Lists in every form they are asked for, from one description: columns, tabs, JSON, JSON lines, ids, chosen fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, Generic, TypeVar

import click

from redrive.cli.access import EVERY
from redrive.cli.output import MISSING, as_json, bold, clean, columns, on_terminal, say, tabbed, write, write_json
from redrive.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Object = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The form that was asked for. None of them: columns on a terminal, tabs in a pipe."""

    json: bool = False
    jsonl: bool = False
    quiet: bool = False
    wide: bool = False
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How one kind of thing is listed.

    `key` is the name in `as_object` that -q prints. `table` gives header and rows for a terminal, `line` the values for
    a pipe. `none` is said on a terminal when there is nothing. `inside`: in JSON the list lies under this name, beside
    `next`; "" for a bare array. `every`: how to get all of them at once, said where a list was cut. `kind` is what the
    rows are, or makes one: by it a wrong name in --fields is told also when there are none. `below`: lines that stand
    under the row on a terminal, already clean.
    """

    key: str
    as_object: Callable[[T], Object]
    table: Callable[[Sequence[T]], tuple[Sequence[str], list[list[str]]]]
    line: Callable[[T], Sequence[str]]
    none: str
    inside: str = ""
    every: str = ""
    kind: type[T] | Callable[[], T] | None = None
    below: Callable[[T], Iterable[str]] | None = None


def list_options(command: F) -> F:
    """--json --jsonl --fields -q --wide; the command gets them as one `shape`."""

    @wraps(command)
    def shaped(
        *args: Any, as_json: bool, as_jsonl: bool, fields: str | None, quiet: bool, wide: bool, **rest: Any
    ) -> Any:
        if as_json + as_jsonl + quiet > 1:
            raise click.UsageError("--json, --jsonl and -q exclude each other", ctx=click.get_current_context())
        if quiet and fields is not None:
            raise click.UsageError("-q and --fields exclude each other", ctx=click.get_current_context())
        return command(*args, shape=Shape(as_json, as_jsonl, quiet, wide, _names(fields)), **rest)

    wrapped: Any = shaped
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    made: F = wrapped
    return made


_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="JSON: times in UTC, durations in seconds."),
    click.option("--jsonl", "as_jsonl", is_flag=True, help="JSON, one object a line."),
    click.option("--fields", metavar="A,B", help="Only these, named as in JSON."),
    click.option("-q", "--quiet", is_flag=True, help="Only the names or ids, one a line."),
    click.option("--wide", is_flag=True, help="Whole values, however narrow the terminal is."),
)


def _names(fields: str | None) -> tuple[str, ...]:
    if fields is None:
        return ()
    names = tuple(name.strip() for name in fields.split(",") if name.strip())
    if not names:
        raise ConfigError("it names no field", field="--fields", hint="as in --fields id,queue")
    return names


def show_list(
    listing: Listing[T], rows: Sequence[T], shape: Shape, *, more: str | None = None, beside: Object | None = None
) -> None:
    """`more` is the cursor that goes on where the rows end. `beside`: what else JSON has besides the list."""
    _check_fields(listing, rows, shape)
    if shape.json:
        objects = list(_objects(listing, rows, shape))
        write_json({listing.inside: objects, "next": more, **(beside or {})} if listing.inside else objects)
        return
    if shape.jsonl:
        for each in _objects(listing, rows, shape):
            write(as_json(each, indent=None))
    elif shape.quiet:
        for row in rows:
            write(clean(str(listing.as_object(row)[listing.key])))
    elif shape.fields:
        _show_fields(listing, rows, shape)
    elif on_terminal():
        header, cells = listing.table(rows)
        columns(header, cells, wide=shape.wide, below=[listing.below(row) for row in rows] if listing.below else ())
    else:
        tabbed(listing.line(row) for row in rows)
    if more is not None:
        say(f"there are more: --cursor {more}{listing.every and f' goes on, {listing.every}'}")
    elif not rows and on_terminal():
        say(listing.none)


def _objects(listing: Listing[T], rows: Iterable[T], shape: Shape) -> Iterable[Object]:
    for row in rows:
        whole = listing.as_object(row)
        yield {name: _reached(whole, name) for name in shape.fields} if shape.fields else whole


def show_ids(ids: Sequence[str], more: str | None, shape: Shape, none: str) -> None:
    """For -q, where nothing else was kept of them."""
    listing: Listing[str] = Listing(
        key="id",
        as_object=lambda each: {"id": each},
        table=lambda rows: (["ID"], [[each] for each in rows]),
        line=lambda each: [each],
        none=none,
        every=EVERY,
    )
    show_list(listing, ids, shape, more=more)


def _check_fields(listing: Listing[T], rows: Sequence[T], shape: Shape) -> None:
    """Of an empty list; else the first row tells."""
    from redrive.cli.blank import blank

    if rows or not shape.fields or listing.kind is None:
        return
    row = blank(listing.kind) if isinstance(listing.kind, type) else listing.kind()
    whole = listing.as_object(row)
    for name in shape.fields:
        # What lies inside may not be there in a blank: only its first part is certain.
        first = name.partition(".")[0]
        _reached(whole, name if isinstance(whole.get(first), dict) else first)


def _show_fields(listing: Listing[T], rows: Sequence[T], shape: Shape) -> None:
    cells = [[_cell(value) for value in each.values()] for each in _objects(listing, rows, shape)]
    if on_terminal():
        columns([name.upper() for name in shape.fields], cells, wide=shape.wide)
    else:
        tabbed(cells)


def _reached(whole: Object, name: str) -> Any:
    """`settings.rate` reaches into an object."""
    value: Any = whole
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            names = list(value) if isinstance(value, dict) else []
            near = get_close_matches(part, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none inside it'}"
            raise ConfigError(f"there is no field {name!r}", field="--fields", hint=hint)
        value = value[part]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """One thing: names and values under a title, or tab-separated in a pipe."""
    if not on_terminal():
        tabbed(facts)
        return
    pairs = list(facts)
    room = max((len(name) for name, _ in pairs), default=0)
    write(bold(clean(title)))
    for name, value in pairs:
        write(f"  {name:<{room}}  {clean(value)}")
