"""`redrive item set-policy`, `run-now`, `expire`, `park` and `unpark`: commands for waiting items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.queue_set import check_policy_name
from redrive.cli.selection import Choice, named
from redrive.core.acts import (
    Amended,
    Expire,
    Park,
    RunNow,
    SetPolicy,
    Unpark,
)
from redrive.core.filters import parse as parse_filter
from redrive.core.policy_data import describe, is_data
from redrive.errors import ConfigError
from redrive.office.settings import policy_value
from redrive.stores.checks import check_label

if TYPE_CHECKING:
    from redrive.app import Redrive

CHOSEN = """Items that run or have ended are skipped; a filter selects waiting items only.
ID may be a unique prefix; - reads ids from stdin, one a line. With --where or more than 100 ids it asks first; without
a terminal, use --yes. In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were.
"""
ABOUT_SET_POLICY = f"""Replace the policy of waiting items, from their next failure on.

\b
Examples:
  redrive item set-policy k3v9q2ma --policy '{{"max_attempts": 10}}' --reason 'the bank is slow today'
  redrive item set-policy --where 'queue:payments attempts>2' --policy gentle --reason INC-88
  redrive item set-policy k3v9q2ma --clear --reason 'as its queue again'

A policy is JSON with some of backoff, max_attempts, max_age and route, or the name of one that an app declares. Omitted
options are those of the queue's policy, then of the handler's. --clear removes the item's own policy.
{CHOSEN}"""
ABOUT_RUN_NOW = f"""Make waiting items due at once, instead of after their delay or the wait before their next attempt.

\b
Examples:
  redrive item run-now k3v9q2ma --reason 'the bank is back'
  redrive item run-now --where 'queue:payments errors>0' --reset --reason INC-88

--reset gives them the full budget of attempts again, as a replay does for a letter. Items that wait for other items, or
in a paused queue, still wait.
{CHOSEN}"""
ABOUT_EXPIRE = f"""Make waiting items dead letters with the reason `expired`, without another attempt.

\b
Examples:
  redrive item expire k3v9q2ma --reason 'the offer has ended'
  redrive item expire --where 'queue:offers age>7d' --reason 'too late' --dry-run

Unlike a cancelled item, a letter can be found, read and replayed.
{CHOSEN}"""


ABOUT_PARK = f"""Park waiting items: no worker leases them, even if they are due, until they are unparked.

\b
Examples:
  redrive item park k3v9q2ma --label schema --reason 'waits for release 1.4'
  redrive item park --where 'queue:payments payload.currency:CHF' --label bank --reason INC-88

--label is a short name: `hold:parked` finds parked items, `redrive item explain` says who parked one and why. A parked
item counts as parked and not as backlog; a parked head of an order key blocks its key. It can still be cancelled,
expired and edited.
{CHOSEN}"""
ABOUT_UNPARK = f"""Unpark items: they run when nothing else holds them.

\b
Examples:
  redrive item unpark k3v9q2ma --reason 'release 1.4 is out'
  redrive item unpark --where 'queue:payments state:parked' --reason 'INC-88 is over'

Items that are not parked are skipped.
{CHOSEN}"""


@click.command("set-policy", help=ABOUT_SET_POLICY, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@click.option("--policy", metavar="JSON|NAME", help="As in '{\"max_attempts\": 10}', or the name of a policy.")
@click.option("--clear", is_flag=True, help="Remove the items' own policy.")
@click.option("--new-policy", is_flag=True, help="Accept a policy name that no app has declared yet.")
@act_options("Show which items would be changed, and change nothing.")
def set_policy(
    *, ids: tuple[str, ...], where: str | None, policy: str | None, clear: bool, new_policy: bool, how: How
) -> int:
    choice = _choice(ids, where)
    if bool(policy) == clear:
        raise click.UsageError("give --policy or --clear, one of the two", ctx=click.get_current_context())
    change = SetPolicy(policy_value(policy, "--policy"))

    async def check(app: Redrive) -> None:
        if change.policy and not is_data(change.policy) and not new_policy:
            await check_policy_name(app, change.policy, new=False)

    async def apply(app: Redrive, ids: list[str]) -> Amended:
        if new_policy and change.policy and not is_data(change.policy):
            await check_policy_name(app, change.policy, new=True)
        return await app.set_policy(ids, change.policy or None, reason=how.reason, request_id=how.request)

    to = f"the policy {describe(change.policy)}" if change.policy else "no policy of their own"
    words = Words("changed", f"Give {{count}} {to}?", "would change", would_be=f"given {to}", noun="item")
    return act(how, Wish(choice, change, words, apply, check=check))


@click.command("run-now", help=ABOUT_RUN_NOW, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@click.option("--reset", is_flag=True, help="Give them the full budget of attempts again.")
@act_options("Show which items would be made due, and change nothing.")
def run_now(*, ids: tuple[str, ...], where: str | None, reset: bool, how: How) -> int:
    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.run_now(ids, reset=reset, reason=how.reason, request_id=how.request)

    words = Words("rescheduled", "Run {count} now?", "would reschedule", noun="item")
    return act(how, Wish(_choice(ids, where), RunNow(reset=reset), words, apply))


@click.command("expire", help=ABOUT_EXPIRE, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@act_options("Show which items would expire, and change nothing.")
def expire(*, ids: tuple[str, ...], where: str | None, how: How) -> int:
    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.expire(ids, reason=how.reason, request_id=how.request)

    words = Words("expired", "Let {count} expire?", "would let expire", noun="item")
    return act(how, Wish(_choice(ids, where), Expire(), words, apply))


@click.command("park", help=ABOUT_PARK, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@click.option("--label", metavar="WORD", required=True, help="A short name for why, as in schema.")
@act_options("Show which items would be parked, and change nothing.")
def park(*, ids: tuple[str, ...], where: str | None, label: str, how: How) -> int:
    check_label(label)

    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.park(ids, label, reason=how.reason, request_id=how.request)

    words = Words("parked", "Park {count}?", "would park", noun="item")
    return act(how, Wish(_choice(ids, where), Park(label), words, apply))


@click.command("unpark", help=ABOUT_UNPARK, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@act_options("Show which items would be unparked, and change nothing.")
def unpark(*, ids: tuple[str, ...], where: str | None, how: How) -> int:
    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.unpark(ids, reason=how.reason, request_id=how.request)

    words = Words("unparked", "Unpark {count}?", "would unpark", noun="item")
    return act(how, Wish(_choice(ids, where), Unpark(), words, apply))


def _choice(ids: tuple[str, ...], where: str | None) -> Choice:
    if bool(ids) == (where is not None):
        text = "name items by id or by --where, one of the two"
        raise click.UsageError(text, ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("filter must not be empty", field="--where", hint="for every waiting item: state:ready")
    parse_filter(where or "")
    return Choice(named(ids), where)
