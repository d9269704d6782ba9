"""The shape of every act on letters that needs nothing but a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    yes_option,
)
from redrive.cli.acts import ASK_ABOVE, Wish, Words, act, report
from redrive.cli.choosing import Choice, choice_options
from redrive.core.verbs import Amended, Change
from redrive.office.letters import check_reason

if TYPE_CHECKING:
    from redrive.app import Redrive

CHOOSING = """ID may be a unique prefix; - reads ids from stdin, one a line. If one is not found, nothing is done.
With --where, --view, --all or more than 100 letters it asks first; without a terminal say --yes. What
somebody puts away or moves while it asks is skipped, if a filter had named it.
In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were."""


def plain_act(
    name: str,
    about: str,
    change: Change,
    words: Words,
    do: Callable[[Redrive, list[str], str], Awaitable[Amended]],
    *,
    ask_above: int = ASK_ABOVE,
) -> click.Command:
    """`do` gets the app, the ids and the reason."""

    @click.command(name, help=about, context_settings=HELP_NAMES)
    @choice_options
    @reason_option()
    @yes_option
    @dry_run_option("Say which letters it is about, and do nothing.")
    @json_option
    @store_option
    @verbose_option
    def command(*, choice: Choice, reason: str, yes: bool, dry_run: bool, as_json: bool, store: str) -> int:
        why = check_reason(reason)
        wish = Wish(
            choice.ids,
            choice.where,
            change,
            words,
            yes,
            dry_run,
            lambda app, ids: do(app, ids, why),
            choice.view,
            ask_above,
        )
        return report(act(store, wish), wish, as_json=as_json)

    return command
