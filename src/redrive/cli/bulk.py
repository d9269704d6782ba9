"""Acts on many items from the command line: ask, do, report. What was counted and confirmed is exactly what moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_of,
    store_option,
    verbose_option,
    visit,
    yes_option,
)
from redrive.cli.asking import Progress, can_ask, confirm
from redrive.cli.exits import Exit, Refused
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import Unwritten, clean, on_terminal, say, write, write_json
from redrive.cli.selection import choice_options
from redrive.core.acts import (
    Amended,
    Change,
    Refusal,
    Skipped,
)
from redrive.core.item import short_id
from redrive.engine.ids import new_id
from redrive.office.bulk import Done, apply, would_do
from redrive.office.letters import check_reason
from redrive.office.selection import Choice, Chosen, choose, gone_since

if TYPE_CHECKING:
    from redrive.app import Redrive

F = TypeVar("F", bound=Callable[..., Any])
ASK_ABOVE = 100
TYPE_ABOVE = 1000
SAMPLE = 5
CHOOSING = """ID may be a unique prefix; - reads ids from stdin, one a line. If one is not found, nothing is done.
With --where, --view, --all or more than 100 letters it asks first; without a terminal say --yes. What
somebody puts away or moves while it asks is skipped, if a filter had named it.
In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were."""
DONE_ALL_THE_SAME = "it is done, only not listed; redrive audit list tells what"


class Words(Struct, frozen=True):
    """How an act is described: "sent again 2", "Send 2 letters again?", "2 letters would be sent again"; `key` in JSON.

    `would_be` and `key` are as `done` unless they are given. `replay`: for which letters were only reserved. `none`
    is said where nothing was chosen.
    """

    done: str
    question: str
    would: str
    would_be: str = ""
    key: str = ""
    noun: str = "letter"
    replay: str = ""
    none: str = ""


class How(Struct, frozen=True):
    """The options that all acts have, and the `request` id of the command: one in the audit, however many parts."""

    reason: str
    yes: bool
    dry_run: bool
    as_json: bool
    store: str
    request: str


class Wish(Struct, frozen=True):
    """`do` acts on the ids that were chosen; `change`, and `refused` by the name of a queue, say which of them it will
    refuse. More than `ask_above` of them need a yes, and so does every set that a filter names. `check` may refuse
    before anything is chosen. `by_payload`: `do` itself says what a dry run would do.
    """

    choice: Choice
    change: Change
    words: Words
    do: Callable[[Redrive, list[str]], Awaitable[Amended | Done]]
    ask_above: int = ASK_ABOVE
    check: Callable[[Redrive], Awaitable[None]] | None = None
    by_payload: bool = False
    refused: Callable[[str], Refusal | None] = lambda _queue: None

    @property
    def would_be(self) -> str:
        return self.words.would_be or self.words.done


def act_options(dry_run: str, *, reason: str | Literal[False] | None = None) -> Callable[[F], F]:
    """--reason, --yes, --dry-run, --json and the store; the command gets them as `how`.

    `reason`: a default for it, or False for an act that has none.
    """

    def options(command: F) -> F:
        @wraps(command)
        def acting(*args: Any, yes: bool, dry_run: bool, as_json: bool, store: str, **rest: Any) -> Any:
            why = "" if reason is False else check_reason(rest.pop("reason"))
            return command(*args, how=How(why, yes, dry_run, as_json, store, new_id()), **rest)

        wrapped: Any = acting
        for option in (verbose_option, store_option, json_option, dry_run_option(dry_run), yes_option):
            wrapped = option(wrapped)
        wrapped = wrapped if reason is False else reason_option(default=reason)(wrapped)
        made: F = wrapped
        return made

    return options


def act(how: How, wish: Wish) -> int:
    """Choose, ask, do and report. Gives the exit code."""
    return _report(_act(how, wish), how, wish)


def _act(how: How, wish: Wish) -> Done:
    """The question is asked between two visits to the store: none is held open meanwhile."""
    choice, url = wish.choice, how.store

    async def look(app: Redrive) -> list[Chosen]:
        if wish.check is not None:
            await wish.check(app)
        chosen = await choose(store_of(app), app.letters, choice, wish.change, f"nothing was {wish.would_be}")
        return [replace(one, refused=wish.refused(one.queue) or one.refused) for one in chosen]

    chosen = visit(url, look)
    if how.dry_run and wish.by_payload:
        # All in one call, which knows the duplicates of all.
        done = visit(url, lambda app: wish.do(app, [one.id for one in chosen]))
        return Done(done) if isinstance(done, Amended) else done
    if how.dry_run:
        return would_do(chosen)
    if not chosen:
        return Done()
    asked = (choice.is_set or len(chosen) > wish.ask_above) and _confirm(chosen, how, wish)

    async def go(app: Redrive) -> Done:
        may_be_gone = asked and choice.is_set
        gone = await gone_since(store_of(app), app.letters, choice, wish.change, chosen) if may_be_gone else {}
        progress = Progress(wish.words.done, len(chosen) - len(gone))
        with Interrupts("stopping after what is on its way; once more stops at once") as interrupts:
            done = await apply(
                [one.id for one in chosen],
                lambda ids: wish.do(app, ids),
                gone=gone,
                on_progress=progress.add,
                stopped=lambda: interrupts.heard,
            )
        progress.end()
        return done

    return visit(url, go, acts=True)


def _confirm(chosen: Sequence[Chosen], how: How, wish: Wish) -> bool:
    """Whether somebody was asked. Raises Refused unless they say yes."""
    if how.yes:
        return False
    count = f"{len(chosen):,} {wish.words.noun}{'s' * (len(chosen) != 1)}"
    if not can_ask():
        raise Refused(
            f"{count} would be {wish.would_be}, and there is no terminal to ask",
            hint="add --yes, or look with --dry-run",
        )
    for one in chosen[:SAMPLE]:
        say(f"  {short_id(one.id)}  {one.queue}  {one.error}")
    if len(chosen) > SAMPLE:
        say(f"  … and {len(chosen) - SAMPLE:,} more")
    wanted = frozenset({"y", "yes"})
    if len(chosen) > TYPE_ABOVE:
        wanted = frozenset({str(len(chosen)), f"{len(chosen):,}"})
    question = wish.words.question.replace("{count}", count)
    confirm(f"{count} would be {wish.would_be}", question, yes=False, wanted=wanted)
    return True


def _report(done: Done, how: How, wish: Wish) -> int:
    """On stdout is what this very call changed, and nothing that an earlier one with the same request did."""
    asked = frozenset(done.asked)
    changed = [one for one in done.amended.changed if one not in asked]
    for word, those in (("duplicate", done.duplicates or ()), ("kept", done.kept), ("skipped", done.amended.skipped)):
        for left in those:
            say(f"{word} {left.id}: {left.reason}")
    said = _summary(len(changed), done, how, wish)
    try:
        if how.as_json:
            write_json(_as_object(changed, done, how, wish))
        elif not on_terminal():
            for one in (*changed, *done.asked):
                write(clean(one))
    except Unwritten as error:
        raise error if how.dry_run else Unwritten(f"{said}, but {error.message}", hint=DONE_ALL_THE_SAME) from None
    if not how.as_json:
        say(said)
    return _code(done)


def _summary(changed: int, done: Done, how: How, wish: Wish) -> str:
    already, skipped = done.amended.already, done.amended.skipped
    if wish.words.none and done == Done():
        return wish.words.none
    said = [f"{wish.words.would if how.dry_run else wish.words.done} {changed:,}"]
    if wish.words.replay:
        said[0] += f" {wish.words.noun}{'s' * (changed != 1)} for replay {wish.words.replay}"
    said += [f"asked to stop {len(done.asked):,}"] if done.asked else []
    said += [f"{len(already):,} already by this request"] if already else []
    said += [f"duplicates {len(done.duplicates):,}, kept {len(done.kept):,}"] if done.duplicates is not None else []
    said += [f"skipped {len(skipped):,}"] if skipped else []
    return ", ".join(said)


def _code(done: Done) -> int:
    if done.left:
        say(f"interrupted: {done.left:,} were not reached; say it again to go on")
        return Exit.INTERRUPTED
    if not done.amended.skipped and not done.kept:
        return Exit.DONE
    return Exit.PARTLY if done.amended.changed or done.amended.already else Exit.CONFLICT


def _as_object(changed: Iterable[str], done: Done, how: How, wish: Wish) -> dict[str, Any]:
    asked = {"asked": list(done.asked)} if done.asked else {}
    already = {"already": list(done.amended.already)} if done.amended.already else {}
    return {
        "dry_run": how.dry_run,
        wish.words.key or wish.words.done: list(changed),
        **({"replay": wish.words.replay} if wish.words.replay and done != Done() else {}),
        **asked,
        **already,
        **({} if done.duplicates is None else {"duplicates": reasons(done.duplicates), "kept": reasons(done.kept)}),
        "skipped": reasons(done.amended.skipped),
    }


def reasons(those: Iterable[Skipped]) -> list[dict[str, str]]:
    return [{"id": one.id, "reason": one.reason, "code": one.code} for one in those]


def plain_act(
    name: str,
    about: str,
    change: Change,
    words: Words,
    do: Callable[[Redrive, list[str], How], Awaitable[Amended]],
    *,
    ask_above: int = ASK_ABOVE,
) -> click.Command:
    """`do` gets the app, the ids and the options."""

    @click.command(name, help=about, context_settings=HELP_NAMES)
    @choice_options
    @act_options("Say which letters it is about, and do nothing.")
    def command(*, choice: Choice, how: How) -> int:
        return act(how, Wish(choice, change, words, lambda app, ids: do(app, ids, how), ask_above))

    return command
