"""Tables that are made from the code, so that prose cannot drift from it.

A page holds them between `<!-- table: name -->` and `<!-- end -->`. `python -m tests.docs.tables` writes them anew; a
test fails while a page holds another text than the code gives.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

import click

from redrive import Policy, constant, doors, errors, events, exponential, immediate, linear, never
from redrive.cli.exits import TABLE, Exit
from redrive.cli.root import LazyGroup, cli
from redrive.cli.worker_health import GroupHealth
from redrive.core import durations
from redrive.core.acts import SkipCode
from redrive.core.classify import classify
from redrive.core.select import DERIVED, FIELDS, LETTER_FIELDS, MEANING, WORDS
from redrive.core.states import TRANSITIONS, State
from redrive.mailboxes import MailboxMetrics
from redrive.observe.app_metrics import AppMetrics
from redrive.observe.logs import LINES
from redrive.observe.metrics import Metrics
from redrive.receipts import ReceiptMetrics
from redrive.settings import Settings
from redrive.settings.model import fields, value_of
from redrive.stores.base import Store
from tests.docs.pages import ROOT, pages
from tests.webhooks.r18 import ASKED, ROWS

MARKED = re.compile(r"(?P<start><!-- table: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)


def rows(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# --- states ----------------------------------------------------------------------------------------------------------

WHEN = {
    (
        State.READY,
        State.LEASED,
    ): "a worker takes it; delivery and attempt are counted before the handler runs",
    (State.LEASED, State.LEASED): "the lease expired and another worker takes it over, under a new delivery number",
    (State.LEASED, State.READY): "a retry, a snooze, a release at shutdown, or a crash that may be tried again",
    (State.LEASED, State.DONE): "the handler returned",
    (State.LEASED, State.DEAD): "`decide` says that trying again is over: the item is a letter now",
    (State.LEASED, State.CANCELLED): "somebody asked for it, and its handler stopped or would have been tried again",
    (State.READY, State.DEAD): "an item that it waits for is dead or cancelled, and it was to die then",
    (State.READY, State.CANCELLED): "somebody cancelled it, with a reason",
    (State.DEAD, State.DONE): "a worker took the letter where it lay, and did what it was for",
    (State.DEAD, State.CANCELLED): "a worker took the letter where it lay, and found that it is not wanted any more",
    (State.DEAD, State.READY): "somebody replayed the letter: same id, history kept",
}


def transitions() -> str:
    body = [
        (f"`{before}`", f"`{after}`", ", ".join(f"`{verb}`" for verb in sorted(verbs)), WHEN[before, after])
        for (before, after), verbs in TRANSITIONS.items()
    ]
    return rows(("from", "to", "by", "when"), body)


def state_diagram() -> str:
    """The same moves as a picture."""
    moves = [f"    {before} --> {after}: {', '.join(sorted(verbs))}" for (before, after), verbs in TRANSITIONS.items()]
    ends = [f"    {state} --> [*]" for state in State if not any(before is state for before, _ in TRANSITIONS)]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {State.READY}: put", *moves, *ends, "```"])


# --- the store -------------------------------------------------------------------------------------------------------

PLAIN_VERBS = {
    "info": "What the store is: engine, place, library, schema, and the durability in force. Not a coroutine.",
    "tombstone": "What is left of a pruned item, or None.",
    "document": "One document, or None.",
    "gate": "One gate, or None.",
}


def verb_names() -> list[str]:
    return [name for name, value in vars(Store).items() if inspect.isfunction(value) and not name.startswith("_")]


def verbs() -> str:
    body = []
    for name in verb_names():
        function = getattr(Store, name)
        parameters = [str(one).split(":")[0] for one in list(inspect.signature(function).parameters.values())[1:]]
        said = one_line(function.__doc__)
        body.append((f"`{name}({', '.join(parameters)})`", said or PLAIN_VERBS[name]))
    return rows(("verb", "promise"), body)


# --- errors and events -----------------------------------------------------------------------------------------------


def error_tree() -> str:
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    return f"```text\n{tree}\n```\n"


def error_classes() -> list[str]:
    return [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RedriveError)
    ]


def event_classes() -> list[type[events.Event]]:
    return [
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, events.Event) and value is not events.Event
    ]


EVENT_SAID: dict[type[events.Event], str] = {
    events.Enqueued: "items were put; only the ids that were new",
    events.WorkerStarted: "a worker begins, with these queues",
    events.WorkerStopped: "it ended; `released` items went back uncharged",
    events.Leased: "a batch of items was taken",
    events.StoreRecovered: "the store answers again",
    events.Amended: "somebody acted on letters",
    events.SubscriberFailed: "a subscriber of `app.events` raised; the flow was not touched",
}


def event_table() -> str:
    body = []
    for kind in event_classes():
        said = one_line(kind.__doc__) if kind.__doc__ else EVENT_SAID[kind]
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        body.append((f"`{kind.__name__}`", _level(kind), said, fields))
    return rows(("event", "log level", "what happened", "fields"), body)


def _level(kind: type[events.Event]) -> str:
    if kind is events.Finished:
        return "ERROR when dead, WARNING when failed or crashed, INFO when limited, else DEBUG"
    return logging.getLevelName(LINES[kind][0]) if kind in LINES else "not logged"


# --- filters ---------------------------------------------------------------------------------------------------------


def filter_fields() -> str:
    body = []
    for name, kind in FIELDS.items():
        words = (*WORDS.get(name, ()), *(DERIVED if name == "state" else ()))
        values = ", ".join(f"`{word}`" for word in words) or _VALUES[kind]
        body.append((f"`{name}`", MEANING[name], values, "letters only" if name in LETTER_FIELDS else "every item"))
    return rows(("field", "what it is", "values", "of"), body)


_VALUES = {
    "text": "text, `*` for any run of characters",
    "integer": "whole number, also with `<` `<=` `>` `>=`",
    "duration": "duration, also with `<` `<=` `>` `>=`",
    "instant": "date or time, also with `<` `<=` `>` `>=`",
}


# --- policies --------------------------------------------------------------------------------------------------------

SHOWN_POLICIES = {
    "Policy()": Policy(),
    'exponential("1s", factor=2, cap="1h")': Policy(exponential("1s", factor=2, cap="1h")),
    'exponential("30s", factor=3)': Policy(exponential("30s", factor=3)),
    'linear("10s")': Policy(linear("10s")),
    'linear("10s", step="5s", cap="20s")': Policy(linear("10s", step="5s", cap="20s")),
    'constant("1m")': Policy(constant("1m")),
    "immediate()": Policy(immediate()),
    "never()": Policy(never()),
}
SHOWN_FAILURES = 7


def delays() -> str:
    header = ["policy", *(f"error {number}" for number in range(1, SHOWN_FAILURES + 1))]
    body = []
    for name, policy in SHOWN_POLICIES.items():
        waits = policy.simulate(SHOWN_FAILURES)
        cells = ["dead" if wait is None else durations.format(wait) for wait in waits]
        body.append([f"`{name}`", *cells, *[""] * (SHOWN_FAILURES - len(cells))])
    return rows(header, body)


SHOWN_ERRORS: tuple[tuple[str, type[BaseException] | None, str | None, str], ...] = (
    ("`TimeoutError`, and classes named like `ReadTimeout`", TimeoutError, None, ""),
    ("`ConnectionError`, `socket.gaierror`, `ConnectError`, …", ConnectionError, None, ""),
    ("code 429, and classes named like `RateLimitError`", None, "429", ""),
    ("code 401 or 403, and classes named like `AuthError`", None, "401", ""),
    ("code 404 or 410, `FileNotFoundError`", FileNotFoundError, None, ""),
    ("code 408 or 504", None, "504", ""),
    ("any other code 4xx", None, "422", ""),
    ("any other code 5xx", None, "500", ""),
    ("`PermissionError`", PermissionError, None, ""),
    ("`MemoryError`, a text with `no space left`", MemoryError, None, ""),
    ("`ValueError`, `KeyError`, `UnicodeError`, `ZeroDivisionError`, …", ValueError, None, ""),
    ("`TypeError`, `AttributeError`, `NameError`, `AssertionError`, …", TypeError, None, ""),
    ("any other `OSError`", OSError, None, ""),
    ("everything else", RuntimeError, None, ""),
)


def categories() -> str:
    body = []
    for said, kind, code, text in SHOWN_ERRORS:
        verdict = classify(kind, code, text)
        body.append((said, f"`{verdict.category}`", f"`{verdict.rule}`"))
    return rows(("what the handler raised", "category", "rule"), body)


# --- the command line ------------------------------------------------------------------------------------------------

EXITS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed for another reason, which is on stderr",
    Exit.USAGE: "the command, an option, a filter or a URL cannot be used",
    Exit.REFUSED: "not confirmed; nothing was changed",
    Exit.NOT_ALLOWED: "the other side refused it: a hub whose token the edge does not take",
    Exit.NOT_FOUND: "no such item or queue, or a prefix that fits several",
    Exit.CONFLICT: "nothing could be changed in the state it is in",
    Exit.STORE: "the store is not there, not reachable or not usable",
    Exit.STILL_GOING: "still going: the wait was over before what it waited for",
    Exit.PARTLY: "some were changed and some skipped; stderr names them",
    Exit.UNSOUND: "a check found something",
    Exit.INTERRUPTED: "interrupted",
    Exit.UNREAD: "whoever read the output has gone, as `head` does; what a command was to change, it has changed",
}


def exit_codes() -> str:
    body = []
    for code in Exit:
        kinds = [kind.__name__ for kind, exits, _ in TABLE if exits is code and kind.__module__ == errors.__name__]
        body.append((str(int(code)), EXITS[code], ", ".join(f"`{kind}`" for kind in kinds)))
    return rows(("code", "meaning", "errors"), body)


def commands(command: click.Command = cli, path: str = "redrive") -> Iterable[tuple[str, click.Command]]:
    if isinstance(command, LazyGroup):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{path} {name} does not exist"
            yield from commands(child, f"{path} {name}")
    else:
        yield path, command


def command_reference() -> str:
    parts = []
    for path, command in commands():
        context = click.Context(command, info_name=path, terminal_width=100, help_option_names=["-h", "--help"])
        parts.append(f"## {path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


SUMMARIES = ROOT / "src" / "redrive" / "cli" / "summaries.py"
SUMMARIES_HEAD = """\"\"\"The first line of each command's help, for lists of them. Made by tests.docs.tables.\"\"\"

SUMMARIES = {
"""
LONGEST_SUMMARY = 70
"""Help is no wider than 80 columns, and the name of the command stands before it."""


def summaries(group: LazyGroup = cli) -> Iterable[tuple[str, str]]:
    context = click.Context(group, info_name=str(group.name))
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        assert child is not None, name
        if name not in cli.of_doors or group is not cli:  # a door has its own summary
            yield f"{group.name} {name}", child.get_short_help_str(LONGEST_SUMMARY)
        if isinstance(child, LazyGroup):
            yield from summaries(child)


def summaries_module() -> str:
    lines = [f"    {json.dumps(path)}: {json.dumps(text, ensure_ascii=False)},\n" for path, text in summaries()]
    return "".join([SUMMARIES_HEAD, *lines, "}\n"])


# --- settings --------------------------------------------------------------------------------------------------------


def settings_table() -> str:
    body = []
    for name, field in fields().items():
        default = value_of(Settings(), name)
        shown = "" if default in (None, ()) else f"`{field.show(default)}`"
        variable = f"`{field.variable}`" + (f", `{field.variable}_FILE`" if field.secret else "")
        body.append((f"`{name}`", field.says, field.accepts, shown, variable))
    return rows(("setting", "what it is", "values", "default", "variable"), body)


# --- metrics ---------------------------------------------------------------------------------------------------------

SOURCES: dict[str, type[Metrics]] = {
    "every app": AppMetrics,
    "`worker run --processes`": GroupHealth,
    "mailboxes": MailboxMetrics,
    "receipts": ReceiptMetrics,
}


def metrics_table() -> str:
    body = []
    for source, kind in SOURCES.items():
        for family in kind.families:
            name = f"redrive_{family.name}{'_total' * (family.kind == 'counter')}"
            labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
            body.append((f"`{name}{labels}`", family.kind, source, family.help))
    return rows(("metric", "kind", "of", "what it is"), body)


# --- webhooks --------------------------------------------------------------------------------------------------------


def webhook_answers() -> str:
    """Rows of one text have one outcome: R18 tries each of them."""
    body: dict[str, tuple[str, str, str]] = {}
    for row in ROWS:
        wait = "by schedule" if row.after == 1 else f"after {durations.format(row.after * 1000)}" if row.after else ""
        wait = {ASKED: "after that time"}.get(row.answer, wait)
        shown = (row.answer, f"`{row.status}`", wait)
        assert body.setdefault(row.answer, shown) == shown, row.name
    return rows(("answer", "the webhook is", "next attempt"), body.values())


def door_table() -> str:
    body = [
        (
            f"`redrive.{door.name}`",
            ", ".join(f"`redrive {name}`" for name in door.groups),
            "" if door.section is None else f"`[{door.name}]`",
            ", ".join(f"`{name}`" for name in door.metrics),
        )
        for door in doors.every()
    ]
    return rows(("door", "commands", "settings", "metrics, after their prefix"), body)


# --- skips -----------------------------------------------------------------------------------------------------------

SKIPPED: dict[str, str] = {
    "missing": "there is no item with this id",
    "damaged": "its record or payload is damaged",
    "encrypted": "its payload is encrypted with a key that this process does not have",
    "ready leased done cancelled dead": "the act is not for an item in this state; `leased` also: another call has it",
    "open archived trash": "the act is not for a letter with this disposition, or it came there meanwhile",
    "parked": "it is parked: unpark it first",
    "not_parked": "it is not parked",
    "reserved": "it is reserved for a replay in the background",
    "not_reserved": "it is not reserved for this replay",
    "revision": "it is at another revision",
    "edits": "it was edited as often as an item may be",
    "tags": "it would have too many tags",
    "put_off": "it was put off and is not due yet",
    "not_replayed": "it was not replayed, or was recalled already",
    "leased_since": "a worker has leased it since its replay",
    "ended_since": "it has ended since its replay",
    "not_head": "it is not the head of an order key",
    "head": "others wait behind it under its order key",
    "bound": "its order key, dedupe key or dependencies bind it to its queue",
    "dedupe_key": "a live item has its dedupe key",
    "dependency": "an item that it waits for will never be done, or is not known here",
    "same_queue": "it is in this queue already",
    "other_queue": "it is an item of a queue that the call is not about",
    "moved": "it is in another queue or mailbox",
    "duplicate": "another letter with the same key is sent",
    "no_key": "its payload has nothing to deduplicate by",
    "begun": "its replay to another destination was begun",
    "error": "a function of yours raised, or what it gave cannot be used",
}


def skip_codes() -> str:
    assert {code for codes in SKIPPED for code in codes.split()} == {*get_args(SkipCode)}
    return rows(
        ["code", "why it is skipped"],
        [[", ".join(f"`{one}`" for one in codes.split()), why] for codes, why in SKIPPED.items()],
    )


TABLES: dict[str, Callable[[], str]] = {
    "skip-codes": skip_codes,
    "states": state_diagram,
    "transitions": transitions,
    "verbs": verbs,
    "errors": error_tree,
    "events": event_table,
    "filter-fields": filter_fields,
    "delays": delays,
    "categories": categories,
    "exit-codes": exit_codes,
    "settings": settings_table,
    "metrics": metrics_table,
    "doors": door_table,
    "webhook-answers": webhook_answers,
    "commands": command_reference,
}


def filled(text: str) -> str:
    """The blank lines let every reader of Markdown see the table apart from its marks."""
    return MARKED.sub(lambda found: f"{found['start']}\n{TABLES[found['name']]().strip()}\n\n{found['end']}", text)


def write(page: Path) -> None:
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    SUMMARIES.write_text(summaries_module(), encoding="utf-8")
    for each in pages():
        write(each)
