"""`redrive worker run`: a worker process. One signal drains it, a second stops it at once, a third just leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, verbose_option
from redrive.cli.exits import Exit, Talk
from redrive.cli.guard import Guard
from redrive.cli.leaving import leave_now
from redrive.cli.load import load_app
from redrive.cli.output import as_json, clean, iso
from redrive.cli.root import LazyGroup
from redrive.core.durations import format as format_duration
from redrive.core.durations import parse
from redrive.core.item import Millis
from redrive.errors import ConfigError
from redrive.events import Event, StoreFailed, StoreRecovered

LAST_WORDS: Millis = 10_000
"""Beyond the grace: for the last write. A store that is gone must not keep the process."""
HEAR_AGAIN = 0.1
LINGER = 0.25
"""Seconds for tasks that were cancelled long ago."""

logger = logging.getLogger("redrive.cli")

worker = LazyGroup(
    "worker",
    {"run": "redrive.cli.worker:run"},
    help="Worker processes.\n\n\b\nExamples:\n  redrive worker run tasks:app",
)

ABOUT = """Run a worker for the app in MODULE:APP, looked for from the current directory.

\b
Examples:
  redrive worker run tasks:app
  redrive worker run shop.tasks:app --queues emails,invoices
  redrive worker run tasks:app --until-idle

The app brings its own store and handlers. SIGTERM or Ctrl-C once: take nothing new, let handlers finish within the
grace, release the rest. Twice: at once. Exit 0 after SIGTERM, 130 after Ctrl-C or a second signal.
"""


@click.command("run", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", metavar="A,B", help="Only these queues; otherwise all that have a handler.")
@click.option("--until-idle", is_flag=True, help="End when nothing is left that would become due by itself.")
@click.option("--grace", metavar="DURATION", default="30s", show_default=True, help="How long handlers may finish.")
@click.option("--json-logs", is_flag=True, help="Log JSON objects, one a line.")
@verbose_option
@click.pass_obj
def run(talk: Talk, *, target: str, queues: str | None, until_idle: bool, grace: str, json_logs: bool) -> int:
    patience = parse(grace, field="--grace")
    chosen = None if queues is None else _names(queues)
    app = load_app(target)
    set_up_logging(debug=talk.debug, json_logs=json_logs)
    return asyncio.run(Session(app, patience).serve(chosen, until_idle=until_idle))


def _names(queues: str) -> list[str]:
    names = [name.strip() for name in queues.split(",") if name.strip()]
    if not names:
        raise ConfigError("it names no queue", field="--queues", hint="as in --queues emails,invoices")
    return names


class Session:
    """A worker from start to end, and the signals that end it."""

    def __init__(self, app: Redrive, grace: Millis) -> None:
        self._app = app
        self._grace = grace
        self._signals: list[signal.Signals] = []
        self._asked = asyncio.Event()
        self._failing: dict[str, str] = {}
        app.events.subscribe(self._watch)

    async def serve(self, queues: list[str] | None, *, until_idle: bool) -> Exit:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(pool)
        guard = Guard(loop, self._grace)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)
            guard.hear(number)
        try:
            await self._app.open()
            if self._app.info().engine == "memory":
                logger.warning("the app's store is memory: nobody outside of this process can enqueue to it")
            grace = f"{self._grace}ms"
            await self._work(asyncio.create_task(self._app.run(until_idle=until_idle, queues=queues, grace=grace)))
        finally:
            await self._close()
            pool.shutdown(wait=False, cancel_futures=True)
            # asyncio waits for its executor, however long a thread hangs: it gets an empty one.
            loop.set_default_executor(ThreadPoolExecutor())
        await self._part_with_tasks()
        return self._exit()

    async def _part_with_tasks(self) -> None:
        """Asyncio would wait for ever for a handler that swallows its cancellation; its item is released already."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        stuck = (await asyncio.wait(others, timeout=LINGER))[1] if others else set()
        if stuck:
            logger.error("left behind %d tasks that would not end", len(stuck))
            leave_now(self._exit())

    async def _work(self, running: asyncio.Task[None]) -> None:
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        ends = time.monotonic() + (self._grace + LAST_WORDS) / 1000
        while not running.done():
            if len(self._signals) > 1:
                ends = min(ends, time.monotonic() + LAST_WORDS / 1000)
            if time.monotonic() > ends:
                logger.error("the worker did not end in time; leaving, its leases will expire by themselves")
                leave_now(Exit.FAILED)
            await self._stop(running)
        running.result()

    async def _stop(self, running: asyncio.Task[None]) -> None:
        """Said again and again: a stop that comes before the worker has begun would not be heard."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_AGAIN):
                await self._app.stop(grace=0 if len(self._signals) > 1 else None)
        await asyncio.wait({running}, timeout=HEAR_AGAIN)

    def _hear(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._asked.set()
        if len(self._signals) == 1:
            logger.warning(
                "%s: stopping; running handlers may finish within %s, a second signal stops them at once",
                number.name,
                format_duration(self._grace),
            )
        elif len(self._signals) == 2:
            logger.warning("%s again: stopping at once; items in hand are released", number.name)
        else:
            logger.error("%s once more: leaving now", number.name)
            leave_now(Exit.INTERRUPTED)

    async def _close(self) -> None:
        closing = asyncio.create_task(self._app.close())
        done, _ = await asyncio.wait({closing}, timeout=LAST_WORDS / 1000)
        if not done:
            logger.error("the store did not close in time; leaving")
            leave_now(Exit.FAILED)
        closing.result()

    def _watch(self, event: Event) -> None:
        """Which parts of the worker cannot reach the store, and why."""
        if isinstance(event, StoreFailed):
            self._failing[event.part] = event.error
        elif isinstance(event, StoreRecovered):
            self._failing.pop(event.part, None)

    def _exit(self) -> Exit:
        if self._failing:
            why = next(iter(self._failing.values()))
            logger.error(
                "the store could not be told the last results; their leases will expire by themselves: %s", why
            )
            return Exit.STORE
        if len(self._signals) > 1 or signal.SIGINT in self._signals:
            return Exit.INTERRUPTED
        return Exit.DONE


# -- logging ---------------------------------------------------------------------------------------------------------


class PlainFormatter(logging.Formatter):
    """One line, and nothing in it that speaks to a terminal; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{iso(int(record.created * 1000))} {record.levelname:<7} {record.name}: {clean(record.getMessage())}"
        return f"{head}\n{clean(self.formatException(record.exc_info), keep=chr(10))}" if record.exc_info else head


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"at": iso(int(record.created * 1000)), "level": record.levelname.lower(), "logger": record.name}
        fields["message"] = record.getMessage()
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        told = getattr(record, "redrive", None)
        if isinstance(told, dict):
            # Twice through JSON: what a subscriber put there need not be JSON, and a log line must not raise.
            fields |= json.loads(json.dumps(told, default=str))
        return as_json(fields, indent=None)


def set_up_logging(*, debug: bool, json_logs: bool) -> None:
    """To stderr. An app that has set up logging of its own keeps it; our own words reach stderr all the same."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_logs else PlainFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    if debug:
        logging.getLogger("redrive").setLevel(logging.DEBUG)
