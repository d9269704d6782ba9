"""Acts on many items: ask, do, report. What was counted and confirmed is exactly what moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from redrive.cli.access import visit
from redrive.cli.asking import Progress, can_ask, confirm
from redrive.cli.choosing import Choice, Chosen, choose, gone_since, named
from redrive.cli.exits import Exit, Refused
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import Unwritten, clean, on_terminal, say, write, write_json
from redrive.core.item import short_id
from redrive.core.verbs import Amended, Change, Skipped
from redrive.errors import StoreError
from redrive.office.bites import joined

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["Done", "Wish", "Words", "act", "named", "report"]

ASK_ABOVE = 100
TYPE_ABOVE = 1000
SAMPLE = 5
DONE_ALL_THE_SAME = "it is done, only not listed; redrive audit list tells what"
BITE = 2000
"""Items between two looks at whether somebody wants it to stop."""


class Words(Struct, frozen=True):
    """How an act speaks: "2 letters would be sent again", "Send 2 letters again?", "sent again 2", its key in JSON."""

    noun: str
    would_be: str
    question: str
    would: str
    done: str
    key: str


class Done(Struct, frozen=True):
    """`asked`: of those changed, the ones that were only asked to stop and still run. `left` were not reached."""

    amended: Amended = Amended()
    asked: tuple[str, ...] = ()
    left: int = 0


class Wish(Struct, frozen=True):
    """`do` acts on the ids that were chosen; `change` tells which of them it will refuse. More than `ask_above` of them
    need a yes, and so does every set that a filter names. `check` may refuse before anything is chosen.
    """

    ids: tuple[str, ...]
    where: str | None
    change: Change
    words: Words
    yes: bool
    dry_run: bool
    do: Callable[[Redrive, list[str]], Awaitable[Amended | Done]]
    view: str | None = None
    ask_above: int = ASK_ABOVE
    check: Callable[[Redrive], Awaitable[None]] | None = None


def act(url: str, wish: Wish) -> Done:
    """The question is asked between two visits to the store: nothing is held open while somebody thinks."""
    choice = Choice(wish.ids, wish.where, wish.view)

    async def look(app: Redrive) -> list[Chosen]:
        if wish.check is not None:
            await wish.check(app)
        return await choose(app, choice, wish.change, f"nothing was {wish.words.would_be}")

    chosen = visit(url, look)
    if wish.dry_run:
        skipped = tuple(Skipped(one.id, one.refused) for one in chosen if one.refused is not None)
        return Done(Amended(tuple(one.id for one in chosen if one.refused is None), (), skipped))
    if not chosen:
        return Done()
    asked = (choice.is_a_set or len(chosen) > wish.ask_above) and _confirm(chosen, wish)

    async def go(app: Redrive) -> Done:
        gone = await gone_since(app, choice, wish.change, chosen) if asked and choice.is_a_set else {}
        done = await _do(app, [one.id for one in chosen if one.id not in gone], wish)
        since = Amended(skipped=tuple(Skipped(each, why) for each, why in gone.items()))
        return structs.replace(done, amended=joined([since, done.amended]))

    return visit(url, go)


async def _do(app: Redrive, ids: list[str], wish: Wish) -> Done:
    """By bites, with a word on how far it is; Ctrl-C ends it after the bite that is on its way."""
    parts: list[Amended] = []
    asked: list[str] = []
    reached = 0
    progress = Progress(wish.words.done, len(ids))
    with Interrupts("stopping after what is on its way; once more stops at once") as interrupts:
        for start in range(0, len(ids), BITE):
            if interrupts.heard:
                break
            bite = ids[start : start + BITE]
            done = await wish.do(app, bite)
            done = Done(done) if isinstance(done, Amended) else done
            parts.append(done.amended)
            asked += done.asked
            reached += len(bite)
            progress.add(len(bite))
    progress.end()
    amended = joined(parts)
    if amended.changed:
        await _seal(app)
    return Done(amended, tuple(asked), len(ids) - reached)


async def _seal(app: Redrive) -> None:
    try:
        await app.audit.seal()
    except StoreError:
        return  # what was done is in the audit, and the next act or worker seals it


def _confirm(chosen: Sequence[Chosen], wish: Wish) -> bool:
    """Whether somebody was asked. Raises Refused unless they say yes."""
    if wish.yes:
        return False
    words = wish.words
    count = f"{len(chosen):,} {words.noun}{'s' * (len(chosen) != 1)}"
    if not can_ask():
        raise Refused(
            f"{count} would be {words.would_be}, and there is no terminal to ask",
            hint="add --yes, or look with --dry-run",
        )
    for one in chosen[:SAMPLE]:
        say(f"  {short_id(one.id)}  {one.queue}  {one.error}")
    if len(chosen) > SAMPLE:
        say(f"  … and {len(chosen) - SAMPLE:,} more")
    wanted = frozenset({"y", "yes"})
    if len(chosen) > TYPE_ABOVE:
        wanted = frozenset({str(len(chosen)), f"{len(chosen):,}"})
    question = words.question.replace("{count}", count)
    confirm(f"{count} would be {words.would_be}", question, yes=False, wanted=wanted)
    return True


def report(done: Done, wish: Wish, *, as_json: bool) -> int:
    """On stdout is what this very call changed, and nothing that an earlier one with the same request did."""
    asked = frozenset(done.asked)
    changed = [one for one in done.amended.changed if one not in asked]
    for left in done.amended.skipped:
        say(f"skipped {left.id}: {left.reason}")
    said = _summary(len(changed), done, wish)
    try:
        if as_json:
            write_json(_as_object(changed, done, wish))
        elif not on_terminal():
            for one in (*changed, *done.asked):
                write(clean(one))
    except Unwritten as error:
        raise error if wish.dry_run else Unwritten(f"{said}, but {error.message}", hint=DONE_ALL_THE_SAME) from None
    if not as_json:
        say(said)
    return _code(done)


def _summary(changed: int, done: Done, wish: Wish) -> str:
    already, skipped = done.amended.already, done.amended.skipped
    said = [f"{wish.words.would if wish.dry_run else wish.words.done} {changed:,}"]
    said += [f"asked to stop {len(done.asked):,}"] if done.asked else []
    said += [f"{len(already):,} already by this request"] if already else []
    said += [f"skipped {len(skipped):,}"] if skipped else []
    return ", ".join(said)


def _code(done: Done) -> int:
    if done.left:
        say(f"interrupted: {done.left:,} were not reached; say it again to go on")
        return Exit.INTERRUPTED
    if not done.amended.skipped:
        return Exit.DONE
    return Exit.PARTLY if done.amended.changed or done.amended.already else Exit.CONFLICT


def _as_object(changed: Iterable[str], done: Done, wish: Wish) -> dict[str, Any]:
    asked = {"asked": list(done.asked)} if done.asked else {}
    already = {"already": list(done.amended.already)} if done.amended.already else {}
    return {
        "dry_run": wish.dry_run,
        wish.words.key: list(changed),
        **asked,
        **already,
        "skipped": [{"id": one.id, "reason": one.reason} for one in done.amended.skipped],
    }
