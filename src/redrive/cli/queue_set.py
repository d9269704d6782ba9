"""`redrive queue set | pause | resume`: what an operator may change while everything runs."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from difflib import get_close_matches
from typing import Any, cast

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_of, store_option, verbose_option, visit
from redrive.cli.output import on_terminal, say, tabbed, write_json
from redrive.cli.queue import known_queue
from redrive.cli.status import limits, settings_object
from redrive.core import durations, rates
from redrive.core.families import OWN_GATE, family_of
from redrive.core.policy_data import is_data
from redrive.core.verbs import SAYABLE, QueueSettings
from redrive.errors import ConfigError, NotFound
from redrive.office.letters import check_reason
from redrive.office.policies import declare_policies, declared_policies
from redrive.office.settings import OFF, QueueOptions, queue_change
from redrive.stores.checks import ORDERS

NONE = "none"
ABOUT_SET = """Change what limits a queue, for every worker, from their next lease on. `none` lifts a limit.

\b
Examples:
  redrive queue set emails --max-running 10 --rate 100/min --reason 'the mail server is slow'
  redrive queue set emails --rate none --reason 'it is fast again'
  redrive queue set payments --order park --max-per-key 1 --reason INC-88
  redrive queue set payments --policy '{"max_attempts": 10, "max_age": "7d"}' --reason INC-88

It stays until it is changed again, or until a release of the code declares another value than the one before did.
Prints the settings that are not as a new queue has them; in a pipe as NAME and VALUE, separated by tabs.
A policy is JSON with some of backoff, max_attempts, max_age and route, or the name of one that an app declares.
"""
ABOUT_PAUSE = """Stop workers from taking items of a queue. What runs goes on; enqueue goes on.

\b
Examples:
  redrive queue pause emails --reason 'the mail server is down'
"""
ABOUT_RESUME = """Let workers take items of a queue again.

\b
Examples:
  redrive queue resume emails
  redrive queue resume emails --reason 'the mail server is back'
"""


def _count(text: str, option: str) -> int:
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        hint = f"use a whole number of at least 1, or {NONE} for no limit"
        raise ConfigError(f"{text!r} is not a number", field=option, hint=hint) from None


def _share(text: str, option: str) -> float | None:
    if text.strip().lower() == OFF:
        return None
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        hint = f"use a number such as 0.3, a percentage such as 30%, or {OFF}"
        raise ConfigError(f"{text!r} is not a share", field=option, hint=hint) from None


def _text(text: str, _option: str) -> str:
    return text


def _duration(text: str, option: str) -> str:
    durations.parse(text, field=option)
    return text


def _rate(text: str, option: str) -> str:
    rates.parse(text, field=option)
    return text


def _order(text: str, option: str) -> str:
    if text not in ORDERS:
        near = get_close_matches(text, ORDERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ALWAYS["order"]
        raise ConfigError(f"{text!r} is none of {', '.join(ORDERS)}", field=option, hint=hint)
    return text


def _switch(text: str, option: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise ConfigError(f"{text!r} is neither on nor off", field=option, hint="use on or off")
    return text.lower() == "on"


# Option, what it reads, and what it says of itself.
OPTIONS: dict[str, tuple[str, Callable[[str, str], Any], str]] = {
    "max_running": ("N", _count, "How many run at once, over all workers."),
    "max_per_key": ("N", _count, "How many run at once for each limit key."),
    "rate": ("RATE", _rate, "How fast they are given out, as in 100/min or 5 per 10s."),
    "capacity": ("N", _count, "How many may wait or run before enqueue refuses."),
    "order": ("WORD", _order, "Behind a dead head of an order key: block, park or skip."),
    "policy": ("JSON|NAME", _text, "As in '{\"max_attempts\": 10}', or the name of one that an app declares."),
    "gate": ("NAME", _text, "The gate it stands behind."),
    "keep": ("DURATION", _duration, "How long finished items are kept, as in 7d."),
    "keep_results": ("DURATION", _duration, "How long results are kept."),
    "keep_trash": ("DURATION", _duration, "How long a discarded letter can be brought back, as in 30d."),
    "retry_share": ("SHARE", _share, "What retries may take while first attempts wait, as in 0.2 or 20%; off: all."),
    "encrypt": ("on|off", _switch, "Whether new payloads and results are stored encrypted."),
}


ALWAYS = {
    "order": "block is what a new queue has",
    "encrypt": "off is what a new queue has",
    "keep_trash": "30d is what a new queue has; 3650d keeps them for ten years",
}
"""What cannot be lifted, but for what a member of a family has again as its family has it."""


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (metavar, _, about) in reversed(OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, help=about)(command)
    return command


@click.command("set", help=ABOUT_SET, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@_setting_options
@click.option("--new-gate", is_flag=True, help="Also if there is no such gate yet.")
@click.option("--new-policy", is_flag=True, help="Also if no app has declared such a policy yet.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@json_option
@store_option
@verbose_option
def set_queue(
    *, name: str, new_gate: bool, new_policy: bool, reason: str, as_json: bool, store: str, **said: str | None
) -> None:
    settings = _settings(name, said)
    if not settings:
        raise click.UsageError("say what to set, as in --max-running 10", ctx=click.get_current_context())
    why = check_reason(reason)
    new = {word for word, is_new in (("gate", new_gate), ("policy", new_policy)) if is_new}
    now = visit(store, lambda app: _set(app, name, why, settings, new), acts=True)
    if as_json:
        write_json(settings_object(now))
        return
    tabbed((word.replace("_", "-"), value) for word, value in limits(now).items())
    if not limits(now) and on_terminal():
        say("as a new queue has them")


def _settings(queue: str, said: dict[str, str | None]) -> QueueOptions:
    """Read and checked before the store is looked for; errors name the option as it was typed."""
    settings: dict[str, Any] = {}
    for name, text in said.items():
        if text is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if text.strip().lower() != NONE:
            value = OPTIONS[name][1](text, option)
        elif name not in ALWAYS or (name in SAYABLE and family_of(queue)):
            value = None
        else:
            raise ConfigError("a queue always has one", field=option, hint=ALWAYS[name])
        try:
            queue_change({name: value}, queue)
        except ConfigError as error:
            message = error.message.removeprefix(f"{name}: ")
            raise ConfigError(message, field=option, hint=error.hint.replace("None", NONE)) from None
        settings[name] = value
    return cast("QueueOptions", settings)


async def _set(app: Redrive, name: str, reason: str, settings: QueueOptions, new: Container[str]) -> QueueSettings:
    """`new` says of which words the name need not be known."""
    await known_queue(app, name)
    gate, policy = settings.get("gate"), settings.get("policy")
    if gate and gate != OWN_GATE and "gate" not in new:
        # A typo would be a gate of its own, which nothing ever opens.
        check_known("gate", gate, [view.name for view in await app.gates()])
    if isinstance(policy, str) and not is_data(policy):
        # A typo would change nothing at all: workers that do not know the name go by the handler's policy.
        await check_policy_name(app, policy, new="policy" in new)
    await app.configure(name, reason=reason, **settings)
    return (await known_queue(app, name)).settings


def check_known(word: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]!r}? otherwise " if near else ""
        declared = f"app.gate({name!r})" if word == "gate" else f"app.policy({name!r}, Policy(...))"
        raise NotFound(f"no {word} {name!r}", hint=f"{guess}declare it with {declared}, or say --new-{word}")


async def check_policy_name(app: Redrive, name: str, *, new: bool) -> None:
    """`new` declares the name, ahead of the release that gives it a meaning."""
    if new:
        await declare_policies(store_of(app), [name])
    else:
        check_known("policy", name, await declared_policies(store_of(app)))


@click.command("pause", help=ABOUT_PAUSE, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.option("--reason", metavar="TEXT", required=True, help="Why; shown by status, kept in the audit.")
@json_option
@store_option
@verbose_option
def pause(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)

    async def act(app: Redrive) -> None:
        await known_queue(app, name)
        await app.pause(name, reason=why)

    visit(store, act, acts=True)
    _told(name, as_json=as_json, paused=True)


@click.command("resume", help=ABOUT_RESUME, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.option("--reason", metavar="TEXT", default="resumed", help="Why; kept in the audit.")
@json_option
@store_option
@verbose_option
def resume(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)

    async def act(app: Redrive) -> None:
        await known_queue(app, name)
        await app.resume(name, reason=why)

    visit(store, act, acts=True)
    _told(name, as_json=as_json, paused=False)


def _told(name: str, *, as_json: bool, paused: bool) -> None:
    if as_json:
        write_json({"queue": name, "paused": paused})
    else:
        say(f"{'paused' if paused else 'resumed'} {name}")
