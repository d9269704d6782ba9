"""`redrive alert …`: commands for alert rules and their states, silences, and tests of channels."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from redrive.cli.access import (
    HELP_NAMES,
    config_option,
    json_option,
    reason_option,
    settings,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.output import MISSING, iso, say, seconds, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.core.redact import redact_text
from redrive.errors import ConfigError
from redrive.observe.alerts.api import RuleView
from redrive.observe.alerts.model import Silence
from redrive.office.said import check_reason

alert = LazyGroup(
    "alert",
    {
        "list": "redrive.cli.alert:list_rules",
        "test": "redrive.cli.alert:test",
        "silence": "redrive.cli.alert:silence",
        "silences": "redrive.cli.alert:list_silences",
        "unsilence": "redrive.cli.alert:unsilence",
    },
    help="""Alerts: rules and their states, tests of channels, silences.

\b
Examples:
  redrive alert list
  redrive alert test ops
  redrive alert silence old-letters --for 2h --reason 'the provider is down'
""",
)

ABOUT_LIST = """List the alert rules with their states: ok, pending, firing, silenced, unknown.

\b
Examples:
  redrive alert list
  redrive alert list --json | jq '.[] | select(.state == "firing")'

The rules are those that workers evaluate, and those of the settings; `unknown` means that no worker evaluates the rule.
In a pipe the columns are RULE STATE SINCE SEVERITY TO WHEN ABOUT, separated by tabs.
"""
ABOUT_TEST = """Send a test message to a channel, now and not through the outbox, and print its answer.

\b
Examples:
  redrive alert test ops
  redrive alert test ops --app tasks:app

The channel is one of the settings, or of your app. PagerDuty and Opsgenie get an alert that is resolved at once.
Exit 1 if the channel refuses the message or cannot be reached.
"""
ABOUT_SILENCE = """Send no notices of a rule for a time: for one queue, or for all.

\b
Examples:
  redrive alert silence old-letters --for 2h --reason 'the provider is down'
  redrive alert silence old-letters --queue emails --for 1d --reason 'known, fixed on Monday'
  redrive alert silence '*' --for 30m --reason 'moving the database'

Alerts that still fire when the time is over are sent then. End a silence early with redrive alert unsilence.
"""
ABOUT_SILENCES = """List the active silences, the first to end first.

\b
Examples:
  redrive alert silences
  redrive alert silences -q

In a pipe the columns are ID RULE QUEUE UNTIL BY REASON, separated by tabs.
"""
ABOUT_UNSILENCE = """End a silence early.

\b
Examples:
  redrive alert unsilence k3v9q2ma --reason 'they are back'

ID may be any prefix that no other silence has.
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@store_option
@verbose_option
def list_rules(*, shape: Shape, store: str) -> None:
    from redrive.app import Redrive
    from redrive.app.internals import parts_of

    rules = settings().alerts.rules

    async def read(app: Redrive) -> tuple[RuleView, ...]:
        for rule in rules.values():
            parts_of(app).alerts.add_rule(rule)
        return await app.alerts.list()

    listing: Listing[RuleView] = Listing(
        key="rule",
        as_object=_rule_object,
        table=lambda rows: (["RULE", "STATE", "SINCE", "SEVERITY", "TO", "WHEN", "ABOUT"], [_row(row) for row in rows]),
        line=_row,
        none="no alert rules",
        kind=RuleView,
    )
    show_list(listing, visit(store, read), shape)


def _rule_object(row: RuleView) -> dict[str, Any]:
    return {
        "rule": row.name,
        "state": row.state,
        "since": iso(row.since),
        "silenced_until": iso(row.silenced_until),
        "severity": row.severity,
        "when": row.when,
        "queues": list(row.queues),
        "for": seconds(row.for_),
        "repeat": seconds(row.repeat),
        "to": list(row.to),
        "channels": list(row.channels),
        "firing": [
            {
                "subject": each.subject,
                "text": redact_text(each.text),
                "since": iso(each.since),
                "pending": each.pending,
                "told_at": iso(each.told_at),
            }
            for each in row.firing
        ],
    }


def _row(row: RuleView) -> list[str]:
    when = " ".join([row.when, *([f"queues={','.join(row.queues)}"] if row.queues else [])])
    about = row.firing[0].text if row.firing else MISSING
    more = f" and {len(row.firing) - 1:,} more" if len(row.firing) > 1 else ""
    since = iso(row.since) or MISSING
    return [row.name, row.state, since, row.severity, ",".join(row.to), when, f"{redact_text(about)}{more}"]


@click.command("test", help=ABOUT_TEST, context_settings=HELP_NAMES)
@click.argument("channel", metavar="CHANNEL")
@click.option(
    "--app",
    "target",
    metavar="MODULE:APP",
    envvar="REDRIVE_APP",
    help="Your app, for the channels of its code; also REDRIVE_APP.",
)
@config_option
@json_option
@verbose_option
def test(*, channel: str, target: str | None, as_json: bool) -> None:
    from redrive.app import Redrive
    from redrive.app.internals import parts_of
    from redrive.cli.load import load_app

    chosen = settings().alerts
    app = Redrive("memory:", log=False) if target is None else load_app(target)
    book = parts_of(app).alerts
    book.load(chosen.channels, {}, chosen.every)
    if not book.channels:
        hint = "declare them in redrive.toml, or name your app with --app"
        raise ConfigError("no channels are declared here", field="CHANNEL", hint=hint)
    answer, kind = asyncio.run(app.alerts.test(channel)), book.channel(channel).kind
    if as_json:
        write_json({"channel": channel, "kind": kind, "answer": answer})
    else:
        write(f"{channel}\t{kind}\t{answer}")


@click.command("silence", help=ABOUT_SILENCE, context_settings=HELP_NAMES)
@click.argument("rule", metavar="RULE")
@click.option("--queue", metavar="QUEUE", help="Only of this queue or family; otherwise of all.")
@click.option("--for", "duration", metavar="DURATION", required=True, help="For how long, as in 2h.")
@reason_option()
@json_option
@store_option
@verbose_option
def silence(*, rule: str, queue: str | None, duration: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    made = visit(store, lambda app: app.alerts.silence(rule, duration, reason=why, queue=queue), acts=True)
    if as_json:
        write_json(_silence_object(made))
    else:
        say(f"silenced {made.rule}{f' for {made.queue}' if made.queue else ''} until {iso(made.until)}: {made.id}")


@click.command("silences", help=ABOUT_SILENCES, context_settings=HELP_NAMES)
@list_options
@store_option
@verbose_option
def list_silences(*, shape: Shape, store: str) -> None:
    listing: Listing[Silence] = Listing(
        key="id",
        as_object=_silence_object,
        table=lambda rows: (["ID", "RULE", "QUEUE", "UNTIL", "BY", "REASON"], [_silence_row(row) for row in rows]),
        line=_silence_row,
        none="no silences",
        kind=Silence,
    )
    show_list(listing, visit(store, lambda app: app.alerts.silences()), shape)


def _silence_object(row: Silence) -> dict[str, Any]:
    return {
        "id": row.id,
        "rule": row.rule,
        "queue": row.queue or None,
        "until": iso(row.until),
        "at": iso(row.at),
        "by": row.by,
        "reason": row.reason,
    }


def _silence_row(row: Silence) -> list[str]:
    return [row.id, row.rule, row.queue or MISSING, iso(row.until) or MISSING, row.by, row.reason]


@click.command("unsilence", help=ABOUT_UNSILENCE, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@reason_option()
@json_option
@store_option
@verbose_option
def unsilence(*, id: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    ended = visit(store, lambda app: app.alerts.unsilence(id, reason=why), acts=True)
    if as_json:
        write_json(_silence_object(ended))
    else:
        say(f"ended the silence {ended.id} of {ended.rule}")
