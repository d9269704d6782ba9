"""`redrive receipts recover`: one attempt on every dead receipt, in place."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Self, TypeVar

import click

from redrive.cli.access import (
    HELP_NAMES,
    WholeNumber,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.asking import Progress
from redrive.cli.bulk import DONE_ALL_THE_SAME
from redrive.cli.exits import Exit
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import Unwritten, clean, counted, on_terminal, say, write, write_json
from redrive.cli.receipts_target import (
    check_endpoint,
    check_there,
    chosen,
    say_waiting,
    target_options,
    with_client,
)
from redrive.core.acts import Skipped
from redrive.core.redact import redact_text
from redrive.errors import StoreError
from redrive.office.letters import check_reason

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.events import Event
    from redrive.receipts.client import ReceiptClient
    from redrive.receipts.recovery import Recovery

T = TypeVar("T")

ABOUT = """Try every dead receipt once, first failed first, in place: after a crash it is still a dead letter.

\b
Examples:
  redrive receipts recover --endpoint https://broker.example --dry-run
  redrive receipts recover --endpoint https://broker.example
  redrive receipts recover --limit 10 --pace 5/s --reason 'the broker is back'

Delivered receipts are done. Refused ones stay, with one more attempt in their history. Those of a lease that is lost,
or a task that is gone, end as superseded. If the target cannot be reached the command stops, and nothing is changed:
run it again at any time, also twice at once. Ctrl-C leaves the rest.

After a rate limit (429) a receipt is tried again, up to five times. In a pipe stdout has the ids that were delivered,
each as soon as it is. Exit 0 if none of those that were tried is left, 9 if some were kept, 7 if the target or the
store could not be reached. The token is REDRIVE_RECEIPTS_AUTH_TOKEN, or in a file: --token-file.

Receipts that wait for an attempt are not dead letters, and only counted: `redrive receipts send --waiting` delivers
them.
"""


@click.command("recover", help=ABOUT, context_settings=HELP_NAMES)
@dry_run_option("Report which would be tried, and try none.")
@click.option("--limit", metavar="N", type=WholeNumber(min=1), help="At most so many.")
@click.option("--pace", metavar="RATE", help="No faster than this, as in 10/s.")
@click.option(
    "-c", "--concurrency", metavar="N", type=WholeNumber(1, 1000), default=1, show_default=True, help="At once."
)
@reason_option(default="recovery")
@target_options
@json_option
@store_option
@verbose_option
def recover_receipts(
    *,
    dry_run: bool,
    limit: int | None,
    pace: str | None,
    concurrency: int,
    reason: str,
    as_json: bool,
    store: str,
    **target: str | None,
) -> int:
    from redrive.core import rates

    why = check_reason(reason)
    if pace is not None:
        rates.parse(pace, field="--pace")
    settings = chosen(**target)
    if not dry_run:
        check_endpoint(settings)
    if target["queue"] is not None:  # before there is a client, which makes the queue that it is for
        visit(store, lambda app: check_there(app, target["queue"]))
    if dry_run:
        return _report(
            *visit(store, lambda app: _would(app, settings.queue, why, limit)), as_json=as_json, dry_run=True
        )

    async def ask(client: ReceiptClient) -> tuple[Recovery, Rest]:
        done = await _recover(client, why, limit, pace, concurrency)
        return done, await _rest(client.app, settings.queue)

    if as_json or on_terminal():
        return _report(*with_client(store, settings, ask, work=False), as_json=as_json)
    with Lines() as lines:
        done, rest = with_client(store, settings, lambda client: lines.during(client, ask), work=False)
    lines.check(done)
    return _report(done, rest, as_json=False)


class Lines:
    """Writes the id of each delivered receipt at once, so that it is known even if the command is killed. In a thread:
    a slow reader of the pipe delays no attempt.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._ids: SimpleQueue[str] = SimpleQueue()
        self._thread = Thread(target=self._write, name="redrive receipts recover", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.put("")
        self._thread.join()

    async def during(self, client: ReceiptClient, ask: Callable[[ReceiptClient], Awaitable[T]]) -> T:
        from redrive.events import Finished

        def hear(event: Event) -> None:
            if isinstance(event, Finished) and event.queue == client.queue and event.state == "done":
                self._ids.put(event.id)

        leave = client.app.events.subscribe(hear)
        try:
            return await ask(client)
        finally:
            leave()

    def _write(self) -> None:
        try:
            while item_id := self._ids.get():
                write(clean(item_id))
        except Exception as error:  # noqa: BLE001 - what is delivered does not depend on it: see `check`
            self._error = error

    def check(self, done: Recovery) -> None:
        """Raises what kept the ids from being written, if anything did."""
        if isinstance(self._error, Unwritten):
            raise Unwritten(f"{_summary(done)}, but {self._error.message}", hint=DONE_ALL_THE_SAME)
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Rest:
    """What is in the queue afterwards: dead receipts, and those that wait for an attempt."""

    queue: str
    dead: int | None = None
    waiting: int | None = None


async def _rest(app: Redrive, queue: str) -> Rest:
    """Without numbers if the store fails: the result is reported all the same."""
    try:
        row = (await app.tally(members=(queue,))).row(queue)
    except StoreError:
        return Rest(queue)
    return Rest(queue, row.open, row.live)


async def _would(app: Redrive, queue: str, why: str, limit: int | None) -> tuple[Recovery, Rest]:
    """Without a target."""
    from redrive.receipts.dead_receipts import letters_of
    from redrive.receipts.recovery import Recovery

    worked = await app.letters.work(letters_of(queue), print, reason=why, limit=limit, dry_run=True, early=True)
    return Recovery(skipped=worked.skipped, left=worked.left), await _rest(app, queue)


async def _recover(client: ReceiptClient, why: str, limit: int | None, pace: str | None, concurrency: int) -> Recovery:
    logging.getLogger("redrive.receipts").addHandler(logging.NullHandler())  # this command reports it all
    progress = Progress("tried", min(await client.dead_letters.size(), limit or 2**63))
    reached = 0

    def count(so_far: int, _total: int) -> None:
        nonlocal reached
        progress.add(so_far - reached)
        reached = so_far

    with Interrupts("stopping after what is on its way; once more stops at once") as interrupts:
        done = await client.recover(
            reason=why,
            limit=limit,
            pace=pace,
            concurrency=concurrency,
            on_progress=count,
            stop=lambda: interrupts.heard,
        )
    progress.end()
    try:
        await client.app.audit.seal()
    except StoreError:
        return done  # what was done is in the audit, and the next act or worker seals it
    return done


def _report(done: Recovery, rest: Rest, *, as_json: bool, dry_run: bool = False) -> int:
    for word, each in _not_delivered(done):
        say(f"{word} {each.id}: {redact_text(each.reason)}")
    if as_json:
        write_json({**_as_object(done, dry_run=dry_run), "dead": rest.dead, "waiting": rest.waiting})
    elif dry_run and not on_terminal():
        for one in done.left:
            write(clean(one))
    if not as_json:
        say(f"would try {len(done.left):,}" if dry_run else _summary(done))
        untried = (rest.dead or 0) - len(done.kept) - len(done.skipped) - len(done.left)
        if untried > 0:
            say(f"{counted(untried, 'more dead receipt')} {'is' if untried == 1 else 'are'} left")
        say_waiting(rest.waiting or 0, rest.queue)
    return _code(done, dry_run=dry_run)


def _not_delivered(done: Recovery) -> list[tuple[str, Skipped]]:
    groups = (("kept", done.kept), ("superseded", done.superseded), ("skipped", done.skipped))
    return [(word, each) for word, group in groups for each in group]


def _summary(done: Recovery) -> str:
    groups = (("kept", done.kept), ("superseded", done.superseded), ("skipped", done.skipped))
    counts = [f"{word} {len(group):,}" for word, group in groups if group]
    return ", ".join([f"delivered {len(done.delivered):,}", *counts])


def _code(done: Recovery, *, dry_run: bool) -> int:
    if dry_run:
        return Exit.DONE
    if done.stopped:
        were = "was" if len(done.left) == 1 else "were"
        say(f"interrupted: {counted(len(done.left), 'receipt')} {were} not reached; run it again to continue")
        return Exit.INTERRUPTED
    if done.unreachable:
        why = redact_text(done.unreachable)
        left = f"{counted(len(done.left), 'receipt')} left as {'it was' if len(done.left) == 1 else 'they were'}"
        say(f"redrive: {why}; {left} (run it again when it is back)")
        return Exit.STORE
    return Exit.PARTLY if done.kept or done.skipped or done.left else Exit.DONE


def _as_object(done: Recovery, *, dry_run: bool) -> dict[str, object]:
    def group(some: tuple[Skipped, ...]) -> list[dict[str, str]]:
        return [{"id": each.id, "reason": redact_text(each.reason), "code": each.code} for each in some]

    return {
        "dry_run": dry_run,
        "delivered": list(done.delivered),
        "kept": group(done.kept),
        "superseded": group(done.superseded),
        "skipped": group(done.skipped),
        "left": list(done.left),
        "unreachable": redact_text(done.unreachable) or None,
    }
