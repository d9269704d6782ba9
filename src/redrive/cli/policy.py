"""`redrive policy …`: what becomes of an error, and when it is tried again."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from redrive.cli.access import HELP_NAMES, WholeNumber, json_option, verbose_option
from redrive.cli.output import MISSING, brief, say, seconds, write_json
from redrive.cli.policies import app_option, registry_of
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.core import backoff, durations
from redrive.core.policy import Policy
from redrive.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from redrive.core.classify import Verdict

policy = LazyGroup(
    "policy",
    {
        "list": "redrive.cli.policy:list_policies",
        "show": "redrive.cli.policy:show",
        "explain": "redrive.cli.policy:explain",
        "simulate": "redrive.cli.policy:simulate",
    },
    help="""Policies: how often and when an error is tried again, and which errors are different.

\b
Examples:
  redrive policy list --app tasks:app
  redrive policy explain --error TimeoutError
  redrive policy simulate exponential -n 5
""",
)

ABOUT_LIST = """List the policies of an app: those with a name, and those of its handlers.

\b
Examples:
  redrive policy list --app tasks:app
  REDRIVE_APP=tasks:app redrive policy list --json

In a pipe the columns are POLICY KIND DESCRIPTION, separated by tabs.
"""
ABOUT_SHOW = """Show one policy: by its name, by the queue whose handler has it, or `default`.

\b
Examples:
  redrive policy show default
  redrive policy show emails --app tasks:app
"""
ABOUT_EXPLAIN = """Say what a policy makes of an error: its category, the rule that fires, and what happens then.

\b
Examples:
  redrive policy explain --error TimeoutError
  redrive policy explain emails --app tasks:app --error httpx.ReadTimeout --text 'timed out'
  redrive policy explain --status 503

POLICY is a name, a queue, or `default`. An exception outside of the standard library is imported by its dotted name;
one that cannot be is judged by its name alone. --status is a code that the error carries, such as an HTTP status.
"""
ABOUT_SIMULATE = """Show when an item that always fails would be tried again.

\b
Examples:
  redrive policy simulate default -n 10
  redrive policy simulate exponential --base 2s --factor 3 --cap 10m
  redrive policy simulate emails --app tasks:app --json

POLICY is a name or a queue of --app, `default`, or a backoff: exponential, linear, constant, immediate, never. Jitter
is left out. In a pipe the columns are ERROR WAIT SUM in seconds, separated by tabs; the last error has no wait: dead.
"""
BACKOFFS = ("exponential", "linear", "constant", "immediate", "never")


class Named(NamedTuple):
    name: str
    kind: str
    policy: Policy


def _known(target: str | None) -> list[Named]:
    found = [Named("default", "built in", Policy())]
    if target is None:
        return found
    registry = registry_of(target)
    found += [Named(name, "named", each) for name, each in sorted(registry.policies.items())]
    return found + [Named(name, "queue", each.policy) for name, each in sorted(registry.handlers.items())]


def _one(name: str, target: str | None) -> Policy:
    known = _known(target)
    for each in known:
        if each.name == name:
            return each.policy
    near = get_close_matches(name, [each.name for each in known], n=1)
    where = f"there are {', '.join(each.name for each in known)}" if target else "name your app: --app MODULE:APP"
    raise NotFound(f"no policy {name!r}", hint=f"did you mean {near[0]!r}?" if near else where)


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@app_option
@list_options
@verbose_option
def list_policies(*, target: str | None, shape: Shape) -> None:
    listing: Listing[Named] = Listing(
        key="policy",
        as_object=lambda each: {"policy": each.name, "kind": each.kind, **_as_object(each.policy)},
        table=lambda rows: (["POLICY", "KIND", "DESCRIPTION"], [_line(each) for each in rows]),
        line=_line,
        none="no policies",
    )
    show_list(listing, _known(target), shape)
    if target is None:
        say("those of your code are known with --app MODULE:APP, or REDRIVE_APP")


def _line(each: Named) -> list[str]:
    return [each.name, each.kind, each.policy.describe()]


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="POLICY")
@app_option
@json_option
@verbose_option
def show(*, name: str, target: str | None, as_json: bool) -> None:
    found = _one(name, target)
    if as_json:
        write_json({"policy": name, **_as_object(found)})
    else:
        show_facts(f"policy {name}", _facts(found))


def _facts(found: Policy) -> Iterator[tuple[str, str]]:
    yield "backoff", found.backoff.describe()
    yield "max-attempts", "any number" if found.max_attempts is None else str(found.max_attempts)
    yield "max-age", MISSING if found.max_age is None else durations.format(found.max_age)
    yield "max-crashes", str(found.max_crashes)
    yield "max-hint", durations.format(found.max_hint)
    for rule in found.rules:
        yield "rule", f"{rule.name}: {rule.action}" + ("" if rule.backoff is None else f", {rule.backoff.describe()}")


def _as_object(found: Policy) -> dict[str, Any]:
    return {
        "description": found.describe(),
        "backoff": found.backoff.describe(),
        "max_attempts": found.max_attempts,
        "max_age": seconds(found.max_age),
        "max_crashes": found.max_crashes,
        "max_hint": seconds(found.max_hint),
        "rules": [{"rule": rule.name, "action": rule.action} for rule in found.rules],
    }


@click.command("explain", help=ABOUT_EXPLAIN, context_settings=HELP_NAMES)
@click.argument("name", metavar="[POLICY]", default="default")
@click.option("--error", metavar="TYPE", help="The exception's type, as in TimeoutError or httpx.ReadTimeout.")
@click.option("--status", "code", metavar="CODE", help="The code that it carries, as in 503.")
@click.option("--text", metavar="TEXT", default="", help="What it says.")
@app_option
@json_option
@verbose_option
def explain(*, name: str, error: str | None, code: str | None, text: str, target: str | None, as_json: bool) -> None:
    if error is None and code is None and not text:
        raise click.UsageError("say which error: --error, --status or --text", ctx=click.get_current_context())
    found = _one(name, target)
    verdict = found.classify(None if error is None else _type(error), code, text)
    if as_json:
        told = {"policy": name, "category": verdict.category, "rule": verdict.rule, "action": verdict.action}
        write_json({**told, "retry_in": seconds(_wait(found, verdict)), "then": _then(found, verdict)})
    else:
        facts = {"category": verdict.category, "rule": verdict.rule, "action": verdict.action}
        show_facts(f"policy {name}", [*facts.items(), ("then", _then(found, verdict))])


def _type(name: str) -> type[BaseException]:
    module, _, attribute = name.rpartition(".")
    found: object = None
    with suppress(ImportError, ValueError):
        found = getattr(importlib.import_module(module), attribute, None) if module else getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    if not name.replace(".", "").isidentifier():
        raise ConfigError(f"{name!r} is not a type", field="--error", hint="as in TimeoutError or httpx.ReadTimeout")
    say(f"no exception {name} is known here; it is judged by its name alone")
    return type(attribute, (Exception,), {"__module__": module or "builtins"})


def _wait(found: Policy, verdict: Verdict) -> int | None:
    if verdict.action == "dead":
        return None
    if verdict.action == "limit":
        return found.limited_delay(0, 0.5, verdict.rule)
    return found.delay(1, 0.5, verdict.rule)


def _then(found: Policy, verdict: Verdict) -> str:
    wait = _wait(found, verdict)
    if wait is None:
        return "dead at the first error" if verdict.action == "dead" else "dead: its backoff never tries again"
    if verdict.action == "limit":
        return f"tried again after {brief(wait)} or as the other side asks; it costs no attempt and never kills"
    if verdict.action == "keep":
        return f"tried again after {brief(wait)}, up to {found.ceiling(verdict.rule):,} errors"
    most = "any number of times" if found.max_attempts is None else f"{found.max_attempts:,} attempts in all"
    return f"tried again after {brief(wait)}; {most}"


@click.command("simulate", help=ABOUT_SIMULATE, context_settings=HELP_NAMES)
@click.argument("name", metavar="POLICY")
@click.option("-n", "count", metavar="N", type=WholeNumber(1, 10_000), default=10, show_default=True, help="Errors.")
@click.option("--base", metavar="DURATION", help="Of a backoff: the first wait.")
@click.option("--factor", type=float, metavar="X", help="Of exponential: how much longer each time.")
@click.option("--cap", metavar="DURATION", help="Of a backoff: the longest wait.")
@click.option(
    "--max-attempts", metavar="N", type=WholeNumber(min=1), default=25, show_default=True, help="Of a backoff."
)
@app_option
@list_options
@verbose_option
def simulate(
    *,
    name: str,
    count: int,
    base: str | None,
    factor: float | None,
    cap: str | None,
    max_attempts: int,
    target: str | None,
    shape: Shape,
) -> None:
    shaped = {"base": base, "factor": factor, "cap": cap}
    if name in BACKOFFS:
        found = Policy(_backoff(name, shaped), max_attempts)
    else:
        said = [option for option, value in shaped.items() if value is not None]
        if said:
            hint = f"it shapes a backoff: {', '.join(BACKOFFS)}"
            raise ConfigError(f"{name!r} has its own", field=f"--{said[0]}", hint=hint)
        found = _one(name, target)
    listing: Listing[Step] = Listing(
        key="error",
        as_object=lambda step: {"error": step.error, "wait": seconds(step.wait), "sum": seconds(step.sum)},
        table=lambda rows: (["ERROR", "WAIT", "SUM"], [_step_row(step) for step in rows]),
        line=lambda step: [str(step.error), _number(step.wait), _number(step.sum)],
        none="no errors",
    )
    show_list(listing, list(_steps(found, count)), shape)


class Step(NamedTuple):
    """After error number `error` it waits; None: it is dead. `sum` is all waiting up to then."""

    error: int
    wait: int | None
    sum: int


def _steps(found: Policy, count: int) -> Iterator[Step]:
    total = 0
    for number, wait in enumerate(found.simulate(count), 1):
        total += wait or 0
        yield Step(number, wait, total)


def _step_row(step: Step) -> list[str]:
    return [str(step.error), "dead" if step.wait is None else durations.format(step.wait), durations.format(step.sum)]


def _number(millis: int | None) -> str:
    return MISSING if millis is None else f"{millis / 1000:g}"


def _backoff(name: str, shaped: dict[str, Any]) -> backoff.Backoff:
    takes = {"exponential": ("base", "factor", "cap"), "linear": ("base", "cap"), "constant": ("base", "cap")}
    given = {option: value for option, value in shaped.items() if value is not None}
    for option in given:
        if option not in takes.get(name, ()):
            raise ConfigError(f"{name} has none", field=f"--{option}", hint=f"it takes {takes.get(name) or 'nothing'}")
    if name in ("linear", "constant"):
        given.setdefault("base", "1s")
    made: backoff.Backoff = getattr(backoff, name)(**given)
    return made
