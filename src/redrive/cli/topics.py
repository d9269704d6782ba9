"""`redrive help`: of a command, or of what all commands share."""

from __future__ import annotations

from difflib import get_close_matches

import click

from redrive.cli.access import HELP_NAMES, verbose_option
from redrive.cli.output import write
from redrive.cli.root import cli

EXIT_CODES = """Exit codes

  0    done, also an empty list
  1    failed; with `item wait`, the item did
  2    usage: unknown command, bad flag, bad filter, bad settings
  3    refused: not confirmed, or nobody was there to confirm it
  4    not allowed: an edge refused the token of a hub, or what it asked for
  5    not found, or a prefix that is not unique
  6    conflict: nothing could be changed in its state
  7    the store is not there, not reachable or not usable
  8    still going: the time to wait ran out
  9    partly: some were skipped, named on stderr
  10   a check found something: health, doctor, db check, audit verify
  130  interrupted
  141  whoever read the output has gone, as `head` does; what was to be changed is changed

What goes wrong is one line on stderr; with --json or --jsonl an object: {"error": {"code", "message", "hint",
"details"}}.
"""
FILTERS = """Filters

  queue:emails error:*Timeout attempts>=3 age>2h tag:eu -cause:c41f "card declined"

  a b           both                        field:a,b   any of them
  a OR b        either                      field:a*    * is any run of characters, and the only wildcard
  -a            not                         field>=3    numbers, and durations as in age>2h
  ( )           groups                      "a b"       protects blanks and signs, * too

A bare word or phrase is looked for in the error and in the payload. payload.order.amount>100 reaches into the payload.
The same text works in Python, app.letters.find("…"), and in --where. The fields: redrive help fields.
"""
DURATIONS = """Durations

  200ms 30s 5m 1h30m 7d 2w   units
  30                         a number alone is seconds
  PT1H30M                    ISO 8601

Rates are a number, a slash and a duration: 100/s, 100/min, 5 per 10s, 100/min burst 20.
Times are ISO 8601: 2027-01-31, 2027-01-31T08:00Z, 2027-01-31T08:00+01:00; without a zone they are UTC.
In JSON durations are seconds, and times UTC.
"""
ENVIRONMENT = """Environment

  REDRIVE_STORE    where the queues are, as --store
  REDRIVE_CONFIG   the file with settings, as --config
  REDRIVE_APP      MODULE:APP, as --app
  REDRIVE_DEBUG    1 shows the traceback of an error, as -v
  NO_COLOR         no colours, as --no-color
  COLUMNS          how wide the terminal is

Each setting has a variable too, and those with a secret may end in _FILE to name a file: redrive config schema.
"""
FIELDS = """Fields of filters

{fields}

How they are compared: redrive help filters.
"""
TEXTS = {
    "exit-codes": ("How a command ends.", EXIT_CODES),
    "filters": ("The language of --where.", FILTERS),
    "fields": ("The fields of filters.", FIELDS),
    "durations": ("Durations, rates and times.", DURATIONS),
    "environment": ("Variables that redrive reads.", ENVIRONMENT),
}
ABOUT = "Explain a topic or a command.\n\n\b\nExamples:\n  redrive help exit-codes\n  redrive help queue push\n"
TOPICS = "\b\nTopics:\n" + "".join(f"  {name:<12} {about}\n" for name, (about, _) in TEXTS.items())


def _fields() -> str:
    from redrive.core.select import DERIVED, FIELDS, MEANING, WORDS

    lines = []
    for name in FIELDS:
        lines.append(f"  {name:<13}{MEANING[name]}")
        words = (*WORDS.get(name, ()), *(DERIVED if name == "state" else ()))
        if words:
            lines.append(f"{'':<15}{', '.join(words)}")
    return "\n".join(lines)


@click.command("help", help=ABOUT, epilog=TOPICS, context_settings=HELP_NAMES)
@click.argument("words", metavar="[TOPIC | COMMAND]...", nargs=-1)
@verbose_option
@click.pass_context
def show_help(context: click.Context, *, words: tuple[str, ...]) -> None:
    if len(words) == 1 and words[0] in TEXTS:
        text = TEXTS[words[0]][1]
        write((text.format(fields=_fields()) if words[0] == "fields" else text).rstrip())
        return
    command: click.Command = cli
    above = click.Context(cli, info_name="redrive", help_option_names=HELP_NAMES["help_option_names"])
    for word in words:
        below = command.get_command(above, word) if isinstance(command, click.Group) else None
        if below is None:
            names = [*TEXTS, *(command.list_commands(above) if isinstance(command, click.Group) else ())]
            near = get_close_matches(word, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"topics are {', '.join(TEXTS)}"
            raise click.UsageError(f"there is no help on {' '.join(words)!r}; {hint}", ctx=context)
        command, above = (
            below,
            click.Context(below, info_name=word, parent=above, help_option_names=HELP_NAMES["help_option_names"]),
        )
    write(command.get_help(above) if words else context.get_help())
