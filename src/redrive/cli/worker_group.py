"""The supervisor: keeps worker processes running, and ends them together. It never loads the user's code.

A process that dies is replaced after a pause, which grows while it keeps dying. One that ends by itself with code 0 has
nothing left to do, or was told to by an operator, and is not. If none was ever ready, something is wrong with the
command rather than with the work, and the group gives up with the code of the first.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from redrive.cli.exits import Exit
from redrive.cli.worker_logs import logger
from redrive.cli.worker_reload import Sources
from redrive.cli.worker_session import LAST_WORDS
from redrive.core.durations import format as format_duration
from redrive.core.item import Millis

FIRST_PAUSE: Millis = 1_000
LONGEST_PAUSE: Millis = 30_000
SETTLED: Millis = 60_000
"""A process that ran so long was no failed start: its successor begins with the first pause."""
OWN_TIME: Millis = 5_000
"""Beyond what worker processes allow themselves to end, before they are killed."""
LOOK_EVERY = 0.5
LINE_LIMIT = 1024 * 1024


class Child:
    """A worker process that runs, and its end of the line."""

    def __init__(
        self, process: asyncio.subprocess.Process, line: asyncio.StreamReader, ours: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.line = line
        self.ours = ours
        self.ready = False
        self.replaced = False
        self.started = time.monotonic()

    def tell(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def lived(self) -> Millis:
        return int((time.monotonic() - self.started) * 1000)


class Group:
    """`command` starts one worker process, when it is given the number of its line. `sources`: start all anew when they
    change.
    """

    def __init__(self, command: Sequence[str], processes: int, grace: Millis, sources: Sources | None = None) -> None:
        self._command = tuple(command)
        self.processes = processes
        self.health_port: int | None = None
        """Process 1 serves its own endpoint on the next port, process 2 on the one after."""
        self.died = 0
        self._grace = grace
        self._sources = sources
        self._children: set[Child] = set()
        self._signals: list[signal.Signals] = []
        self._stirred = asyncio.Event()
        self.any_ready = False
        self._deaths: list[tuple[int, str]] = []
        self._given_up: int | None = None
        self._killed = False

    async def run(self) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)
        watching = asyncio.create_task(self._watch_sources())
        codes = await asyncio.gather(*(self._keep(number) for number in range(1, self.processes + 1)))
        watching.cancel()
        return self._exit(codes)

    @property
    def ready(self) -> int:
        """How many processes are ready. Any thread may ask."""
        return sum(child.ready for child in tuple(self._children))

    # -- one place in the group ------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> int:
        """The code with which its last process ended."""
        pause = FIRST_PAUSE
        while True:
            child = await self._started(number)
            if child is None:
                return 0
            code = await self._until_ended(child)
            if self.is_ending() or (code == 0 and not child.replaced):
                return code
            if not self.any_ready and self._sources is None:
                self._give_up(code)
                return code
            if code != 0:
                self._report(child.process.pid, how_it_ended(code))
            if child.replaced or child.lived >= SETTLED:
                pause = FIRST_PAUSE
            if not child.replaced:
                await self._rest(child, how_it_ended(code), pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            if self.is_ending():
                return 0

    async def _rest(self, child: Child, how: str, pause: Millis) -> None:
        """Until it is time to start another, a source changes or the group ends."""
        pid = child.process.pid
        if self._sources is not None and not child.ready:
            logger.error("worker process %d ended: %s; it is started again when a source changes", pid, how)
            await self._stirring(None)
            return
        logger.error("worker process %d ended: %s; another is started in %s", pid, how, format_duration(pause))
        await self._stirring(pause)

    async def _stirring(self, limit: Millis | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if limit is None else limit / 1000):
                await self._stirred.wait()

    def _report(self, pid: int, why: str) -> None:
        """Through one that is ready, or the next that will be: they have a store, and a supervisor has none."""
        self.died += 1
        self._deaths.append((pid, why))
        for child in self._children:
            if child.ready:
                self._pass_on(child)
                break

    def _pass_on(self, child: Child) -> None:
        """To one that is not ready yet all is told again when it is, in case that it never will be."""
        for pid, why in self._deaths:
            child.ours.write(f"{json.dumps({'died': pid, 'why': why})}\n".encode())
        if child.ready:
            self._deaths.clear()

    async def _started(self, number: int) -> Child | None:
        """None if the group ends before the system has room for another process."""
        while True:
            try:
                return await self._start(number)
            except OSError as error:
                wait = format_duration(LONGEST_PAUSE)
                logger.error("no worker process could be started: %s; trying again in %s", error, wait)
            await self._stirring(LONGEST_PAUSE)
            if self.is_ending():
                return None

    async def _start(self, number: int) -> Child:
        ours, theirs = socket.socketpair()
        port = self.health_port and self.health_port + number
        with ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            line = theirs.fileno()
            # A group of its own: Ctrl-C at a terminal reaches the supervisor alone, which passes it on once.
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *(() if port is None else ("--health-port", str(port))),
                "--line",
                str(line),
                pass_fds=(line,),
                process_group=0,
                stdin=asyncio.subprocess.DEVNULL,
            )
            unless_started.pop_all()
        child = Child(process, *await asyncio.open_connection(sock=ours, limit=LINE_LIMIT))
        self._children.add(child)
        self._pass_on(child)
        for heard in self._signals:
            child.tell(heard)
        return child

    async def _until_ended(self, child: Child) -> int:
        listening = asyncio.create_task(self._listen(child))
        try:
            code = await child.process.wait()
        finally:
            self._children.discard(child)
        # What it said last may still be on the way; a process of its own that keeps the line must not keep us.
        await asyncio.wait({listening}, timeout=LOOK_EVERY)
        listening.cancel()
        child.ours.close()
        return code

    async def _listen(self, child: Child) -> None:
        while words := await child.line.readline():
            said = json.loads(words)
            if self._sources is not None:
                self._sources.add(said.get("files", ()))
            if said.get("ready"):
                child.ready = self.any_ready = True
                self._pass_on(child)

    # -- the end ---------------------------------------------------------------------------------------------------

    def is_ending(self) -> bool:
        return bool(self._signals) or self._given_up is not None

    def _hear(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._tell_all(number)
        patience = LAST_WORDS + OWN_TIME + (self._grace if len(self._signals) == 1 else 0)
        asyncio.get_running_loop().call_later(patience / 1000, self._kill)

    def _give_up(self, code: int) -> None:
        if self._given_up is None:
            self._given_up = code
            self._tell_all(signal.SIGTERM)
            asyncio.get_running_loop().call_later((self._grace + LAST_WORDS + OWN_TIME) / 1000, self._kill)

    def _tell_all(self, number: signal.Signals) -> None:
        self._stirred.set()
        for child in tuple(self._children):
            child.tell(number)

    def _kill(self) -> None:
        for child in tuple(self._children):
            logger.error("worker process %d did not end in time; killing it", child.process.pid)
            self._killed = True
            child.tell(signal.SIGKILL)

    def _exit(self, codes: Sequence[int]) -> Exit:
        if self._given_up is not None:
            return _as_exit(self._given_up)
        # A process that had no ears yet ends by the signal itself: it held nothing.
        fine = {0, Exit.INTERRUPTED, *(-number for number in self._signals)}
        wrong = [code for code in codes if code not in fine]
        if wrong or self._killed:
            return _as_exit(wrong[0]) if wrong else Exit.FAILED
        if len(self._signals) > 1 or signal.SIGINT in self._signals:
            return Exit.INTERRUPTED
        return Exit.DONE

    # -- sources ---------------------------------------------------------------------------------------------------

    async def _watch_sources(self) -> None:
        while self._sources is not None:
            await asyncio.sleep(LOOK_EVERY)
            changed = self._sources.changed()
            if changed and not self.is_ending():
                logger.warning("%s changed; starting anew", ", ".join(Path(path).name for path in changed))
                for child in tuple(self._children):
                    child.replaced = True
                    child.tell(signal.SIGTERM)
                # Those that rest are woken, and whoever rests later waits for the next change.
                self._stirred.set()
                self._stirred.clear()


def worker_command(target: str, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "redrive", "worker", "run", target, *options]


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _as_exit(code: int) -> Exit:
    try:
        return Exit(code)
    except ValueError:
        return Exit.FAILED
