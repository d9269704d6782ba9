"""The command, and the order of its scenes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from redrive.app import Redrive
from redrive.cli import run
from redrive.cli.access import HELP_NAMES, verbose_option
from redrive.cli.demo import crew, scenes, sums
from redrive.cli.demo.app import LOAD, MAX_CRASHES, build
from redrive.cli.exits import Exit
from redrive.cli.output import write
from redrive.errors import ConfigError, Conflict
from redrive.stores.upkeep import Kept
from redrive.stores.url import store_from_url

T = TypeVar("T")

ABOUT = """Take a tour: work fails in three ways, a process is killed again and again, and nothing is lost.

\b
Examples:
  redrive demo
  redrive demo --keep
  redrive demo --store sqlite:///demo.db

It runs real worker processes for a few seconds, on a store in a temporary folder that is removed at the end. With
--keep, or with a store of your own, it stays for you to look around. Exit 0 only if everything adds up.
"""


@click.command("demo", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--store", metavar="URL", help="A store to use; it must not have the demo's queues yet.")
@click.option("--keep", is_flag=True, help="Leave the store where it is, and say what to try next.")
@verbose_option
def demo(*, store: str | None, keep: bool) -> int:
    if store is not None:
        _check(store)
    place = Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    url = store or f"sqlite:///{place}/redrive.db"
    try:
        wrong = Tour(url, place).take()
    finally:
        if store is not None or not keep:
            shutil.rmtree(place, ignore_errors=True)
    for line in wrong:
        write(f"WRONG: {line}")
    if store is not None or keep:
        _invite(url)
    write("\nNothing was lost." if not wrong else "\nThe promise was broken.")
    return Exit.FAILED if wrong else Exit.DONE


def _check(url: str) -> None:
    """Before anything runs: the demo's numbers are only right if nobody else's are among them."""
    made = store_from_url(url)
    if not isinstance(made, Kept):
        raise ConfigError("memory: is not shared with worker processes", field="--store", hint="use a sqlite: file")

    async def queues() -> set[str]:
        async with Redrive(made, log=False) as app:
            return {row.queue for row in (await app.tally()).queues}

    if taken := sorted(asyncio.run(queues()) & set(LOAD)):
        hint = f"use a store that has none of {', '.join(LOAD)}"
        raise Conflict(f"{made.info().location} has the queue {taken[0]} already", hint=hint)


def _invite(url: str) -> None:
    write("\nTry next:")
    for command in ("status", "letters list", "letters list --by cause"):
        write(f"  redrive {command} --store {url}")


class Tour:
    """Each scene visits the store anew, as different programs would."""

    def __init__(self, url: str, place: Path) -> None:
        self._url = url
        self._place = place
        self._wrong: list[str] = []

    def take(self) -> list[str]:
        """What does not add up; empty if all does."""
        began = time.monotonic()
        write("The promise: every accepted item ends as done, dead or cancelled, and what is dead keeps its story.\n")
        write("1. Work is accepted: when enqueue returns, it is on disk. Nobody works yet, and an item can say so.")
        ids = self.accept()
        self._command("item", "explain", next(iter(ids)))

        write("\n2. Workers run. One item kills the process it runs in, whatever else that process holds.")
        killed = crew.work(self._url, self._place)
        self._expect(killed == MAX_CRASHES, f"{killed} processes were killed, not {MAX_CRASHES}")

        write("\n3. What failed for a while was retried, never before it was due.")
        early = self._visit(lambda app: scenes.show_retries(app, ids))
        self._expect(early == 0, f"{early} attempts began too early")

        write("\n4. What failed for good is a dead letter, grouped by cause.")
        self._command("letters", "list", "--where", f"queue:{','.join(LOAD)}", "--by", "cause")

        write("\n5. The poison item's letter, and what it says of itself.")
        poison = self._visit(lambda app: scenes.poison_letter(app, self._place))
        self._expect(poison.crashes == MAX_CRASHES, "the poison item was not dead after max_crashes")
        self._command("item", "explain", poison.id)

        write("\n6. The bug in orders is fixed; its letters are sent again, same ids, history kept.")
        self._replay()

        write("\n7. The sum.")
        found = self._visit(lambda app: sums.ask(app, ids))
        self._wrong += sums.add_up(self._place, ids, found)
        write(f"  the tour took {time.monotonic() - began:.1f} s")
        return self._wrong

    def accept(self) -> dict[str, str]:
        return self._visit(scenes.enqueue)

    def _replay(self) -> None:
        (bug,) = self._visit(lambda app: app.causes("orders"))
        replayed = self._visit(lambda app: scenes.fix_and_replay(app, self._place, bug))
        self._expect(replayed == bug.count, f"{replayed} letters were replayed, {bug.count} were there")
        killed = crew.work(self._url, self._place)
        self._expect(killed == 0, "a worker was killed after the poison item was dead")

    def _visit(self, ask: Callable[[Redrive], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with build(self._url, self._place) as app:
                return await ask(app)

        return asyncio.run(asked())

    def _command(self, *words: str) -> None:
        """As somebody would type it."""
        write(f"  $ redrive {' '.join(words)}")
        code = run([*words, "--store", self._url])
        self._expect(code == Exit.DONE, f"redrive {' '.join(words)} ended with {code}")

    def _expect(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as a sentence
        if not holds:
            self._wrong.append(otherwise)
