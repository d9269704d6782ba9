"""`redrive item set-policy`: replace the retry policy of waiting items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, store_of
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.queue_set import check_known
from redrive.cli.selection import Choice, named
from redrive.core.filters import parse as parse_filter
from redrive.core.policy_data import describe, is_data
from redrive.core.verbs import Amended, SetPolicy
from redrive.errors import ConfigError
from redrive.office.policies import declared_policies
from redrive.office.settings import policy_value

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Replace the policy of waiting items, from their next failure on.

\b
Examples:
  redrive item set-policy k3v9q2ma --policy '{"max_attempts": 10}' --reason 'the bank is slow today'
  redrive item set-policy --where 'queue:payments attempts>2' --policy gentle --reason INC-88
  redrive item set-policy k3v9q2ma --clear --reason 'as its queue again'

A policy is JSON with some of backoff, max_attempts, max_age and route, or the name of one that an app declares. What
it leaves out is taken from the queue's policy, and then from the handler's. --clear removes the item's own policy.
Items that run or have ended are skipped; a filter selects waiting items only.
ID may be a unique prefix; - reads ids from stdin, one a line. With --where or more than 100 ids it asks first; without
a terminal, use --yes. In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were.
"""


@click.command("set-policy", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting item that matches, instead of ids.")
@click.option("--policy", metavar="JSON|NAME", help="As in '{\"max_attempts\": 10}', or the name of a policy.")
@click.option("--clear", is_flag=True, help="Remove the items' own policy.")
@click.option("--new-policy", is_flag=True, help="Also if no app has declared such a policy yet.")
@act_options("Show which items would be changed, and change nothing.")
def set_policy(
    *, ids: tuple[str, ...], where: str | None, policy: str | None, clear: bool, new_policy: bool, how: How
) -> int:
    context = click.get_current_context()
    if bool(ids) == (where is not None):
        raise click.UsageError("name items by id or by --where, one of the two", ctx=context)
    if bool(policy) == clear:
        raise click.UsageError("give --policy or --clear, one of the two", ctx=context)
    if where is not None and not where.strip():
        raise ConfigError("filter must not be empty", field="--where", hint="for every waiting item: state:ready")
    parse_filter(where or "")
    change = SetPolicy(policy_value(policy, "--policy"))

    async def check(app: Redrive) -> None:
        if change.policy and not is_data(change.policy) and not new_policy:
            check_known("policy", change.policy, await declared_policies(store_of(app)))

    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.set_policy(ids, change.policy or None, reason=how.reason)

    to = f"the policy {describe(change.policy)}" if change.policy else "no policy of their own"
    words = Words("changed", f"Give {{count}} {to}?", "would change", would_be=f"given {to}", noun="item")
    return act(how, Wish(Choice(named(ids), where), change, words, apply, check=check))
