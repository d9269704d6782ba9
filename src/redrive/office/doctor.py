"""The checks of `redrive doctor`: a store's status, its clock, the workers, and what an app's code declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from redrive.core.durations import brief
from redrive.core.families import served
from redrive.core.policy_data import is_data
from redrive.engine.registry import Registry
from redrive.office.health import find_problems, scarce_memory
from redrive.office.overview import Overview
from redrive.stores.upkeep import StoreStatus

SKEW = 2_000
"""Milliseconds between two clocks that are not reported."""


class Check(Struct, frozen=True):
    """`note` is only worth knowing; `do` says what to do about it."""

    state: Literal["ok", "note", "bad"]
    name: str
    text: str
    do: str = ""


def check_status(status: StoreStatus) -> Iterator[Check]:
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
    yield from check_memory(status.facts())
    if status.durability == "power-loss":
        yield Check("ok", "survives", "a power failure")
    else:
        text = f"accepted work survives {status.durability}, not the loss of power"
        yield Check("note", "survives", text, "see docs/durability.md")


def check_memory(facts: Mapping[str, object]) -> Iterator[Check]:
    """Of a server that has its data in memory, and refuses work when it is full."""
    used, most = facts.get("used_memory"), facts.get("maxmemory")
    if isinstance(used, int) and isinstance(most, int) and (text := scarce_memory(used, most)):
        yield Check("bad" if used >= most else "note", "memory", text, "raise maxmemory, or redrive queue prune")


def check_clocks(before: float, at: int, after: float) -> Iterator[Check]:
    """The store's clock was read between the two: what lies outside is skew."""
    skew = max(0.0, before - at, at - after)
    if skew > SKEW:
        text = f"the store's clock and this machine's are {brief(int(skew))} apart; due times go by the store's"
        yield Check("bad", "clocks", text, "set both clocks by NTP")
    else:
        yield Check("ok", "clocks", "the store's and this machine's agree")


def check_fleet(view: Overview) -> Iterator[Check]:
    alive = [beat for beat in view.workers if beat.alive]
    waiting = sum(row.tally.ready for row in view.queues)
    counts = f"{_counted(len(view.queues), 'queue')}, {waiting:,} ready, {_counted(len(alive), 'live worker')}"
    yield Check("ok", "work", counts)
    releases = {beat.facts.release for beat in alive}
    if len(releases) > 1:
        text = f"live workers run different releases: {', '.join(sorted(releases))}"
        yield Check("note", "workers", text, "fine during a deploy")
    for each in find_problems(view):
        yield Check("bad" if each.kind in ("no_worker", "worker_lost") else "note", "work", each.text, each.do)


def check_code(registry: Registry, view: Overview) -> Iterator[Check]:
    """Queues that an app has no handler for, and policies that it does not declare."""
    for row in view.queues:
        to_do = row.tally.ready + row.tally.leased + row.tally.held
        if not served(tuple(registry.handlers), row.name) and to_do:
            text = f"queue {row.name} has {to_do:,} to do, and the app has no handler for it"
            yield Check("bad", "handlers", text, f"@app.handler({row.name!r})")
        policy = row.tally.settings.policy
        if policy and policy not in registry.policies and not is_data(policy):
            text = f"queue {row.name} asks for policy {policy!r}, which the app does not declare"
            yield Check("bad", "policies", text, f"app.policy({policy!r}, Policy(...))")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
