"""`redrive letters tag`, `note` and `move`: what people add to a letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES
from redrive.cli.bulk import CHOOSING, How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, choice_options, known_queue
from redrive.core.acts import (
    Amended,
    Move,
    Note,
    Tag,
)
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT_TAG = f"""Put labels on letters, or take them off. They stay whatever becomes of the letter.

\b
Examples:
  redrive letters tag k3v9q2ma --add vip,eu
  redrive letters tag --where 'cause:41fa*' --add INC-88 --remove new --yes
  redrive letters list --where tag:INC-88

A tag has no blanks and no commas; an item has at most 50 of them.
{CHOOSING}
"""
ABOUT_NOTE = f"""Write something into the history of letters. Nothing else changes.

\b
Examples:
  redrive letters note k3v9q2ma --text 'asked the customer, waiting for an answer'
  redrive letters show k3v9q2ma

{CHOOSING}
"""
ABOUT_MOVE = f"""Give letters to another queue, where they lie until somebody replays them.

\b
Examples:
  redrive letters move k3v9q2ma --to payments-eu --reason 'wrong region'
  redrive letters move --where 'queue:payments tag:eu' --to payments-eu --reason INC-88 --dry-run

A letter that others wait behind under their order key stays: skip it first. To send letters to work in another queue at
once, use replay --to.
{CHOOSING}
"""


@click.command("tag", help=ABOUT_TAG, context_settings=HELP_NAMES)
@choice_options
@click.option("--add", metavar="TAG,…", multiple=True, help="Labels to put on; may be said several times.")
@click.option("--remove", metavar="TAG,…", multiple=True, help="Labels to take off.")
@act_options("Say which letters it is about, and do nothing.", reason="tagged")
def tag(*, choice: Choice, add: tuple[str, ...], remove: tuple[str, ...], how: How) -> int:
    change = Tag(_tags(add), _tags(remove))
    if not change.add and not change.remove:
        raise ConfigError("no tag is named", field="--add", hint="as in --add vip,eu or --remove new")

    async def label(app: Redrive, ids: list[str]) -> Amended:
        return await app.letters.tag(
            ids, add=change.add, remove=change.remove, reason=how.reason, request_id=how.request
        )

    return act(how, Wish(choice, change, Words("tagged", f"Tag {{count}}: {_said(change)}?", "would tag"), label))


def _tags(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.strip() for text in texts for one in text.split(",") if one.strip()))


def _said(change: Tag) -> str:
    return " ".join([*[f"+{one}" for one in change.add], *[f"-{one}" for one in change.remove]])


@click.command("note", help=ABOUT_NOTE, context_settings=HELP_NAMES)
@choice_options
@click.option("--text", metavar="TEXT", required=True, help="What to note.")
@act_options("Say which letters it is about, and do nothing.", reason=False)
def note(*, choice: Choice, text: str, how: How) -> int:
    if not text.strip():
        raise ConfigError("it is empty", field="--text", hint="say what to note")

    async def write_down(app: Redrive, ids: list[str]) -> Amended:
        return await app.letters.note(ids, text, request_id=how.request)

    words = Words("noted on", "Write it to {count}?", "would note on", would_be="noted", key="noted")
    return act(how, Wish(choice, Note(), words, write_down))


@click.command("move", help=ABOUT_MOVE, context_settings=HELP_NAMES)
@choice_options
@click.option("--to", "queue", metavar="QUEUE", required=True, help="Their new queue.")
@click.option("--new", is_flag=True, help="Also if there is no such queue yet.")
@act_options("Say what would be moved, and move nothing.")
def move(*, choice: Choice, queue: str, new: bool, how: How) -> int:
    change = Move(check_queue_name(queue))

    async def give(app: Redrive, ids: list[str]) -> Amended:
        return await app.letters.move(ids, queue, reason=how.reason, request_id=how.request)

    words = Words("moved", f"Move {{count}} to {queue}?", "would move", would_be=f"moved to {queue}")
    return act(how, Wish(choice, change, words, give, check=known_queue(queue, new=new)))
