"""A worker process of the rig: `python -m tests.support.rig.worker <store URL> <log folder> [--lease 1] [--set mix]`.

It ends when its parent does (standard input is closed), stops gracefully on SIGTERM, and writes two files: what its
handlers did, and what the engine said about it. With `--watched N` it also has a pulse, for a supervisor to feel, and
at most N file descriptors.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from redrive import Redrive
from redrive import events as ev
from redrive.stores.clock import Clock, SystemClock
from tests.support.rig import records as r
from tests.support.rig.handlers import Scribe, register_bound, register_mix, register_poison, register_zombie
from tests.support.rig.log import Log, Write, now_ns
from tests.support.rig.opening import opened

PULSE = 0.02

SETS: dict[str, Callable[[Redrive, Scribe, float], None]] = {
    "mix": register_mix,
    "zombie": register_zombie,
    "poison": register_poison,
    "bound": register_bound,
}


def transcriber(log: Write, clock: Clock | None = None, pid: int | None = None) -> Callable[[ev.Event], None]:
    """Turns the engine's events into records."""
    now = (clock or SystemClock()).now

    def write(event: ev.Event) -> None:
        record = record_of(event, now(), now_ns(), pid or os.getpid())
        if record is not None:
            log(record)

    return write


def record_of(event: ev.Event, at: int, now: int, pid: int) -> r.Record | None:
    match event:
        case ev.WorkerStarted():
            return r.Worker(event.worker, pid, now)
        case ev.Finished():
            return r.Settled(
                event.id, event.delivery, event.worker, event.ending, event.state, now, event.retry_in_ms or 0
            )
        case ev.SettleRefused():
            return r.Refused(event.id, event.delivery, event.worker, now)
        case ev.LeaseLost():
            return r.Lost(event.id, event.delivery, event.worker, now)
        case ev.Reclaimed():
            return r.Reclaimed(event.id, event.delivery, event.worker, event.lost_by, now, at)
        case ev.StoreFailed():
            return r.Trouble(pid, event.part, event.error, now)
        case _:
            return None


async def pulse(path: Path) -> None:
    """One byte after the other, as long as the loop turns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        os.write(descriptor, b".")
        await asyncio.sleep(PULSE)  # noqa: TID251 - real time for a real supervisor


def die_with_parent() -> None:
    def watch() -> None:
        os.read(0, 1)
        os._exit(1)  # nobody is left to care

    threading.Thread(target=watch, daemon=True).start()


async def main(options: argparse.Namespace) -> None:
    folder = Path(options.logs)
    pid = os.getpid()
    events, runs = Log(folder / f"events-{pid}.log"), Log(folder / f"runs-{pid}.log")

    def make() -> Redrive:
        made = Redrive(options.url, log=False)
        made.events.subscribe(transcriber(events))
        SETS[options.set](made, Scribe(runs), options.lease)
        return made

    async with opened(make) as app:
        stopping: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: stopping.add(asyncio.create_task(app.stop())))
        beating = asyncio.create_task(pulse(folder / f"pulse-{pid}")) if options.watched else None
        await app.run(grace="2s")
        if beating is not None:
            beating.cancel()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("logs")
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--set", choices=SETS, default="mix")
    parser.add_argument("--watched", type=int, metavar="N", default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # deaths are meant; their cores are not wanted
    die_with_parent()
    chosen = parse()
    if chosen.watched:
        resource.setrlimit(resource.RLIMIT_NOFILE, (chosen.watched, chosen.watched))
    asyncio.run(main(chosen))
