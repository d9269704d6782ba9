"""`redrive doctor`: looks at everything that a first run stumbles over, and says what to do about it."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from redrive._version import __version__
from redrive.cli.access import HELP_NAMES, json_option, store_option, upkeep_of, verbose_option, visit
from redrive.cli.exits import Exit, Talk
from redrive.cli.output import clean, on_terminal, red, tabbed, write, write_json
from redrive.cli.policies import app_option, registry_of
from redrive.errors import RedriveError
from redrive.office.doctor import Check, check_clocks, check_code, check_fleet, check_status

ABOUT = """Look at settings, store, clocks, versions, workers and handlers, and say what to do about what is not well.

\b
Examples:
  redrive doctor
  redrive doctor --app tasks:app
  redrive doctor --json | jq '.checks[] | select(.state != "ok")'

With --app, or REDRIVE_APP, your code is looked at too: queues with work and no handler, policies that nobody declares.
In a pipe each line is STATE, CHECK, TEXT and what to do, separated by tabs. Exit 10 if a check is bad; `note` is only
worth knowing. Nothing is changed.
"""


@click.command("doctor", help=ABOUT, context_settings=HELP_NAMES)
@app_option
@json_option
@store_option
@verbose_option
@click.pass_obj
def doctor(talk: Talk, *, target: str | None, as_json: bool, store: str) -> int:
    checks = [*_here(talk), *_store(store), *([] if target is None else _app(target, store))]
    bad = [each for each in checks if each.state == "bad"]
    if as_json:
        write_json({"sound": not bad, "checks": [_as_object(each) for each in checks]})
    elif on_terminal():
        for each in checks:
            word = red("bad ") if each.state == "bad" else f"{each.state:<4}"
            write(f"{word}  {each.name:<9} {clean(each.text)}" + (f"\n{'':<16}{clean(each.do)}" if each.do else ""))
    else:
        tabbed([each.state, each.name, each.text, each.do] for each in checks)
    return Exit.UNSOUND if bad else Exit.DONE


def _as_object(each: Check) -> dict[str, Any]:
    return {"state": each.state, "check": each.name, "text": each.text, "do": each.do or None}


def _here(talk: Talk) -> Iterator[Check]:
    from redrive.settings import load, unknown_variables

    yield Check("ok", "version", f"redrive {__version__}, Python {platform.python_version()}, {sys.executable}")
    loaded = load(config=talk.config)
    said = "no file: redrive.toml or redrive.yaml" if loaded.file is None else str(loaded.file)
    yield Check("ok", "settings", said)
    for text in unknown_variables():
        yield Check("note", "settings", text, "redrive help environment")


def _store(url: str) -> Iterator[Check]:
    """What cannot be asked is a finding too, and ends the questions."""
    try:
        status = asyncio.run(upkeep_of(url).status())
        yield from check_status(status)
        if status.unusable():
            return
        before = time.time() * 1000
        view = visit(url, lambda app: app.overview())
        yield from check_clocks(before, view.at, time.time() * 1000)
        yield from check_fleet(view)
    except RedriveError as error:
        yield Check("bad", "store", error.message, error.hint)


def _app(target: str, url: str) -> Iterator[Check]:
    try:
        registry = registry_of(target)
    except RedriveError as error:
        yield Check("bad", "app", error.message, error.hint)
        return
    handlers = ", ".join(sorted(registry.handlers)) or "none"
    yield Check("ok" if registry.handlers else "bad", "app", f"{target} handles: {handlers}", "")
    try:
        view = visit(url, lambda app: app.overview())
    except RedriveError:
        return  # it is reported above
    yield from check_code(registry, view)
