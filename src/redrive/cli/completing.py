"""What a shell is told while somebody types: names from the store, soon or not at all.

A parameter is completed by what it is called: QUEUE, ID, GATE. So a command has nothing to do for it. The store has 300
ms to answer; what it said the last time, from a file in the cache, must do otherwise.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.shell_completion import CompletionItem, add_completion_class

from redrive.cli.completing_bash import Bash
from redrive.cli.exits import Talk
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.app import Redrive

PATIENCE = 0.3
MOST = 100
Names = Callable[["Redrive", str], Awaitable[list[tuple[str, str]]]]


def answer(cli: click.Group, talk: Talk) -> NoReturn:
    """To the shell that asks, by the environment. Whatever goes wrong, its terminal is not ours to write on."""
    add_completion_class(Bash)
    with redirect_stderr(io.StringIO()), suppress(Exception):
        cli.main([], prog_name="redrive", standalone_mode=False, obj=talk)
    raise SystemExit(0)


def attach(command: click.Command) -> None:
    """Only a process that completes does this."""
    for parameter in command.params:
        found = re.search("[A-Z]+", str(parameter.metavar or ""))
        kind = "" if found is None else found[0]
        if kind == "FILTER" or kind in SOURCES:
            complete = _fields if kind == "FILTER" else _from_store(kind)
            parameter._custom_shell_complete = complete  # noqa: SLF001 - as click's own shell_complete= would set it


def _fields(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The last word of the filter that is being typed."""
    from redrive.core.select import FIELDS

    before, _, word = typed.rpartition(" ")
    start = f"{before} " if before else ""
    return [CompletionItem(f"{start}{name}:", help=kind) for name, kind in FIELDS.items() if name.startswith(word)]


def _from_store(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            names = _names(kind, _url(context), typed)
        except RedriveError:
            return []
        return [CompletionItem(name, help=about) for name, about in names if name.startswith(typed)]

    return complete


def _url(context: click.Context) -> str:
    """As the command would have it: by what is on the line so far, the environment or the settings."""
    from redrive.settings import load

    named = context.obj.config if isinstance(context.obj, Talk) else None
    return load(config=named, flags={"store": context.params.get("store") or None}).settings.store


def _names(kind: str, url: str, typed: str) -> list[tuple[str, str]]:
    """A store that is away, slow or broken must not cost the typist a word, nor show one of its errors."""
    import redrive.app  # noqa: F401 - as below
    from redrive.cli.access import upkeep_of, visit

    # What is imported comes in before the clock runs, the driver too: a server might never be heard in time otherwise.
    upkeep_of(url)
    found: list[list[tuple[str, str]]] = []

    def asked() -> None:
        with suppress(Exception):
            found.append(visit(url, lambda app: SOURCES[kind](app, typed)))

    asking = threading.Thread(target=asked, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    if found:
        _keep(kind, url, found[0])
        return found[0]
    return _kept(kind, url)


async def _queues(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(row.queue, f"{row.ready} ready, {row.open} dead") for row in (await app.tally()).queues]


async def _ids(app: Redrive, typed: str) -> list[tuple[str, str]]:
    """Letters, and other items once something was typed."""
    from redrive.core.filters import render
    from redrive.core.select import Match

    # A star of theirs cannot stand beside ours.
    start = render(Match("id", "glob", f"{typed}*")) if typed and "*" not in typed else ""
    page = await app.letters.find(start, limit=MOST)
    items = page.items or ((await app.find(start, limit=MOST)).items if start else ())
    return [(item.id, f"{item.queue} {item.letter.failure.type if item.letter else item.state}") for item in items]


async def _causes(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(cause.cause, f"{cause.count} {cause.error}") for cause in await app.causes(limit=MOST)]


async def _gates(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(gate.name, gate.state) for gate in await app.gates()]


async def _routes(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(route.route, f"{route.open} open") for route in (await app.tally(members=False)).routes if route.route]


async def _schedules(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(view.name, view.when) for view in await app.schedules.list()]


async def _workers(app: Redrive, _typed: str) -> list[tuple[str, str]]:
    return [(beat.worker, ", ".join(beat.facts.queues)) for beat in await app.workers() if beat.alive]


SOURCES: dict[str, Names] = {
    "QUEUE": _queues,
    "ID": _ids,
    "CAUSE": _causes,
    "GATE": _gates,
    "ROUTE": _routes,
    "SCHEDULE": _schedules,
    "WORKER": _workers,
}


# -- the cache ---------------------------------------------------------------------------------------------------------


def _place(kind: str, url: str) -> Path:
    """One file for each store: its URL, which may have a password, is only in the name, as a digest."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    where = hashlib.sha256(f"{Path.cwd()} {url}".encode()).hexdigest()[:16]
    return base / "redrive" / f"{where}-{kind.lower()}.json"


def _keep(kind: str, url: str, names: list[tuple[str, str]]) -> None:
    with suppress(OSError):
        place = _place(kind, url)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.write_text(json.dumps(names), encoding="utf-8")


def _kept(kind: str, url: str) -> list[tuple[str, str]]:
    with suppress(OSError, ValueError):
        told = json.loads(_place(kind, url).read_text(encoding="utf-8"))
        return [(str(name), str(about)) for name, about in told]
    return []
