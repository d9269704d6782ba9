"""`redrive doctor`: looks at everything that a first run stumbles over, and says what to do about it."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from redrive._version import __version__
from redrive.cli.access import HELP_NAMES, json_option, store_option, upkeep_of, verbose_option, visit
from redrive.cli.exits import Exit, Talk
from redrive.cli.output import brief, clean, counted, on_terminal, red, tabbed, write, write_json
from redrive.cli.policies import app_option, registry_of
from redrive.core.policy_data import is_data
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.standing import Standing
    from redrive.engine.registry import Registry
    from redrive.stores.upkeep import StoreStatus

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
SKEW = 2_000
"""Milliseconds between the clocks that are not worth a word."""


@dataclass(frozen=True)
class Check:
    state: Literal["ok", "note", "bad"]
    name: str
    text: str
    do: str = ""


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
        yield from _ground(status)
        if status.unusable():
            return
        before = time.time() * 1000
        standing = visit(url, _read)
        yield from _clocks(before, standing.at, time.time() * 1000)
        yield from _fleet(standing)
    except RedriveError as error:
        yield Check("bad", "store", error.message, error.hint)


async def _read(app: Redrive) -> Standing:
    from redrive.cli.standing import read

    return await read(app)


def _ground(status: StoreStatus) -> Iterator[Check]:
    if status.trouble:
        yield Check("bad", "store", f"{status.location}: {status.trouble}", "redrive db check")
        return
    words = dict(status.words())
    unusable, fits = status.unusable(), status.schema <= status.known and not status.changed
    if unusable and fits:
        yield Check("bad", "store", f"{status.location}: {unusable}", "set --store or REDRIVE_STORE")
    else:
        yield Check("ok", "store", f"{status.location}: {words['engine']}")
    schema = words.get("schema", "")
    if not fits:
        yield Check("bad", "schema", schema, "upgrade this redrive: pip install --upgrade redrive")
    elif status.pending:
        yield Check("note", "schema", schema, "redrive db migrate")
    else:
        yield Check("ok", "schema", schema)
    if status.risky:
        text = f"{status.engine} {status.version} has a known fault that redrive works around"
        yield Check("note", "engine", text, "install a newer one")
    yield from memory(status.facts())
    if status.durability == "power-loss":
        yield Check("ok", "survives", "a power failure")
    else:
        text = f"accepted work survives {status.durability}, not the loss of power"
        yield Check("note", "survives", text, "see docs/durability.md")


def memory(facts: Mapping[str, object]) -> Iterator[Check]:
    """Of a server that has its data there, and refuses work when it is full."""
    from redrive.cli.standing import scarce

    used, most = facts.get("used_memory"), facts.get("maxmemory")
    if isinstance(used, int) and isinstance(most, int) and (text := scarce(used, most)):
        yield Check("bad" if used >= most else "note", "memory", text, "raise maxmemory, or redrive queue prune")


def _clocks(before: float, at: int, after: float) -> Iterator[Check]:
    """The store was asked between the two; what lies outside is skew."""
    skew = max(0.0, before - at, at - after)
    if skew > SKEW:
        text = f"the store's clock and this machine's are {brief(int(skew))} apart; due times go by the store's"
        yield Check("bad", "clocks", text, "set both clocks by NTP")
    else:
        yield Check("ok", "clocks", "the store's and this machine's agree")


def _fleet(standing: Standing) -> Iterator[Check]:
    from redrive.cli.health import problems

    alive = [beat for beat in standing.workers if beat.alive]
    waiting = sum(row.ready for row in standing.queues)
    counts = f"{counted(len(standing.queues), 'queue')}, {waiting:,} ready, {counted(len(alive), 'live worker')}"
    yield Check("ok", "work", counts)
    releases = {beat.facts.release for beat in alive}
    if len(releases) > 1:
        text = f"live workers run different releases: {', '.join(sorted(releases))}"
        yield Check("note", "workers", text, "fine during a deploy")
    for each in problems(standing, 15 * 60_000, None):
        yield Check("bad" if each.kind in ("no_worker", "worker_lost") else "note", "work", each.text, each.do)


# -- the app -----------------------------------------------------------------------------------------------------------


def _app(target: str, url: str) -> Iterator[Check]:
    try:
        registry = registry_of(target)
    except RedriveError as error:
        yield Check("bad", "app", error.message, error.hint)
        return
    handlers = ", ".join(sorted(registry.handlers)) or "none"
    yield Check("ok" if registry.handlers else "bad", "app", f"{target} handles: {handlers}", "")
    try:
        standing = visit(url, _read)
    except RedriveError:
        return  # it is told above
    yield from _handled(registry, standing)


def _handled(registry: Registry, standing: Standing) -> Iterator[Check]:
    for row in standing.queues:
        if row.queue not in registry.handlers and row.ready + row.leased + row.held:
            text = (
                f"queue {row.queue} has {row.ready + row.leased + row.held:,} to do, and the app has no handler for it"
            )
            yield Check("bad", "handlers", text, f"@app.handler({row.queue!r})")
        policy = row.settings.policy
        if policy and policy not in registry.policies and not is_data(policy):
            text = f"queue {row.queue} asks for policy {policy!r}, which the app does not declare"
            yield Check("bad", "policies", text, f"app.policy({policy!r}, Policy(...))")
