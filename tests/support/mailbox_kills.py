"""Loops over a mailbox, in a process that is killed again and again, until every message has ended.

    python -m tests.support.mailbox_kills <order as JSON>

This process only forks: whoever sends, whoever works, and whoever looks at the end are children of it, one after the
other. A child that works tells whenever a message is begun; some messages later, and a little after that, it is killed.
It begins no more than those before that: else whoever kills, on a busy machine, would find nothing left to do. Some
messages kill it themselves. Prints one report (tests.support.mailbox_fates).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core.item import Instant, Millis, NewItem
from redrive.mailboxes import (
    DLQPolicy,
    LoopGroup,
    MailboxClosedError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    StoreMailbox,
    current_run,
    open_mailbox,
)
from redrive.stores.clock import Clock
from tests.support.mailbox_fates import KEPT, LIMIT, keys_of, look, request_id
from tests.support.mailbox_plants import plant
from tests.support.rig.engines import kind_of, writable
from tests.support.rig.fork import Child

HURRY = 60
"""A minute takes a second: leases of the dead are waited for, and what is done once a minute."""
VISIBILITY = 20.0
IN_ORDER = 1_200.0
"""The same where nobody dies, and so nothing is waited for: however slow the machine is, nothing may be lost."""
CONFIGS = (
    MainLoopConfig(backoff_base=2, lease_extender=LeaseExtenderConfig(interval=5, extension=VISIBILITY)),
    MainLoopConfig(
        backoff_base=2, max_messages=4, lease_extender=LeaseExtenderConfig(interval=5, extension=VISIBILITY)
    ),
)
"""Of two loops side by side."""
MOST_BEGUN = 6
"""So many messages at most are begun before a process is killed."""
LATER = 0.004
"""Seconds at most that it still has then: any step of what follows may be its last."""
POLL = 0.02
MOST_ASLEEP = 3
"""So many processes stand still at a time, each for longer than its messages are its own."""
AWAKE = 0.05
"""Seconds that such a one has before it is killed."""


Means = Literal["kill", "stop", "term"]


class Order(Struct, frozen=True):
    """Stores by their URLs. `means`: killed; or stopped now and then, woken when others have what it had, and killed
    then; or told to end. `plant`: a fault that must be found.
    """

    source: str
    target: str
    folder: str
    messages: int
    deadly: int
    kills: int
    seed: int
    limit: float
    means: Means = "kill"
    plant: str = ""

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / "ledger"


class HastyClock:
    """In a hurry; the same time for all processes that are forked after it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic_ns()
        self._wall = time.time_ns() // 1_000_000

    def monotonic(self) -> Millis:
        return (time.monotonic_ns() - self._start) * HURRY // 1_000_000

    def now(self) -> Instant:
        return self._wall + self.monotonic()

    async def sleep(self, duration: Millis) -> None:
        await asyncio.sleep(duration / 1000 / HURRY)  # noqa: TID251 - real processes need real time

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        try:
            async with asyncio.timeout(timeout / 1000 / HURRY):
                return await event.wait()
        except TimeoutError:
            return False


class Barred(Exception):
    """Dead-lettered at once."""


@dataclass(frozen=True)
class Ask:
    key: str


class Loop(MainLoop[Ask, str]):
    pass


class Adapter:
    """Does to each request what its key says, and tells that it was begun: in the ledger, and to whoever may kill.

    `leave`: a pipe with a byte for each message that may be begun; at its end, all may.
    """

    def __init__(self, ledger: Path, teller: int, leave: int | None = None) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._teller = teller
        self._leave = leave

    def close(self) -> None:
        os.close(self._ledger)

    def evaluate(self, prompt: Ask) -> str:
        if self._leave is not None:
            os.read(self._leave, 1)
        os.write(self._ledger, f"{prompt.key}\n".encode())
        os.write(self._teller, b".")
        run = current_run()
        assert run is not None
        match prompt.key.partition("-")[0]:
            case "flaky" if run.context.attempt == 1:
                raise ConnectionError("not now")
            case "failing":
                raise ValueError("never")
            case "barred":
                raise Barred("at once")
            case "deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                pass
        return prompt.key


class Boxes:
    """The mailboxes of one process."""

    def __init__(self, order: Order, clock: Clock, stack: ExitStack) -> None:
        def opened(name: str, url: str, body_type: Any = None) -> StoreMailbox[Any, Any]:
            made: StoreMailbox[Any, Any] = open_mailbox(name, url, body_type=body_type, clock=clock, keep=KEPT)
            return stack.enter_context(made)

        self.requests = opened("requests", order.source)
        self.dead = opened("dead", order.target)
        self.replies = opened("replies", order.target, MainLoopResult[str])


@contextmanager
def mailboxes(order: Order, clock: HastyClock) -> Iterator[Boxes]:
    with ExitStack() as stack:
        yield Boxes(order, clock, stack)


def send(order: Order, clock: HastyClock) -> None:
    with mailboxes(order, clock) as boxes:
        send_all(order, boxes)


def send_all(order: Order, boxes: Boxes) -> None:
    place = boxes.requests.shared
    boxes.replies.approximate_count()
    for key in keys_of(order.messages, order.deadly):
        known = request_id(key)
        match key.partition("-")[0]:
            case "garbage":
                place.call(place.store.put, [NewItem(key, "requests", b"\xff\x00" + key.encode())])
                continue
            case "broken":
                body: object = {"request_id": str(known), "no": "request"}
            case _:
                body = MainLoopRequest(Ask(key), request_id=known)
        boxes.requests.send(body, reply_to=boxes.replies, message_id=key)


def work(order: Order, clock: HastyClock, teller: int, leave: int) -> None:
    """Until nothing is left; or until it is killed, or told to stop."""
    if order.plant:
        plant(order.plant)
    with mailboxes(order, clock) as boxes:
        barred = frozenset({Barred})
        dlq: DLQPolicy[Any, Any] = DLQPolicy(boxes.dead, max_delivery_count=LIMIT, include_errors=barred)
        adapter = Adapter(order.ledger, teller, leave)
        loops = [Loop(adapter=adapter, requests=boxes.requests, config=config, dlq=dlq) for config in CONFIGS]
        group = LoopGroup(loops, clock=clock)
        threading.Thread(target=_watch, args=(boxes, group), daemon=True).start()
        group.run(visibility_timeout=IN_ORDER if order.means == "term" else VISIBILITY, wait_time_seconds=10)


def _watch(boxes: Boxes, group: LoopGroup) -> None:
    parent = os.getppid()
    with suppress(MailboxClosedError):
        while os.getppid() == parent and not _is_over(boxes):
            time.sleep(POLL)  # noqa: TID251 - real threads need real time
    group.trigger_shutdown()


def _is_over(boxes: Boxes) -> bool:
    """Nothing waits at the source, nor is on its way from there."""
    place = boxes.requests.shared
    tally = place.call(place.store.tally)
    crossing = place is not boxes.dead.shared
    ours = [row for row in tally.queues if row.queue != "replies"]
    return not any(row.ready + row.held + row.parked + row.leased + crossing * row.open for row in ours)


class Victim:
    """A process that works. `most`: so many messages it may begin; None: as many as there are."""

    def __init__(self, order: Order, clock: HastyClock, most: int | None) -> None:
        reader, teller = os.pipe()
        leave, giver = os.pipe()

        def begin() -> None:
            os.close(reader)
            os.close(giver)
            work(order, clock, teller, leave)

        self._child = Child(begin)
        os.close(teller)
        os.close(leave)
        self._reader = reader
        self._giver: int | None = giver
        if most is None:
            self.let_go()
        else:
            os.write(giver, b"." * most)

    def let_go(self) -> None:
        """It may begin all there is."""
        if self._giver is not None:
            os.close(self._giver)
            self._giver = None

    def begins(self, count: int, until: float) -> bool:
        """Wait for so many messages; False if it ended before that."""
        while count > 0:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return True  # it does nothing: whoever waits on finds out
            told = os.read(self._reader, min(count, select.PIPE_BUF))
            if not told:
                return False
            count -= len(told)
        return True

    def send(self, what: signal.Signals) -> None:
        os.kill(self._child.pid, what)

    def stop(self) -> bool:
        """Returns when all its threads stand still; False if it died before."""
        self.send(signal.SIGSTOP)
        what = os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return what is not None and what.si_code == os.CLD_STOPPED

    def end(self) -> int:
        self.let_go()
        code, _ = self._child.wait()
        os.close(self._reader)
        return code


class Chase:
    """`killed`: processes that were struck. `died`: those that died of what they worked on."""

    def __init__(self, order: Order, clock: HastyClock) -> None:
        self.killed = self.died = 0
        self._order = order
        self._clock = clock
        self._dice = random.Random(order.seed)
        self._until = time.monotonic() + order.limit
        self._asleep: list[Victim] = []

    def run(self) -> None:
        try:
            while self._one():
                pass
        finally:
            while self._asleep:
                self._wake()

    def _one(self) -> bool:
        """One process, from its start to its end; False if it had nothing left to do."""
        count = self._dice.randint(1, MOST_BEGUN) if self.killed < self._order.kills else None
        victim = Victim(self._order, self._clock, count)
        if count is not None and victim.begins(count, self._until):
            time.sleep(self._dice.uniform(0, LATER))  # noqa: TID251 - real processes need real time
            self._strike(victim)
            return True
        if victim.begins(sys.maxsize, self._until):
            victim.send(signal.SIGKILL)
            victim.end()
            raise AssertionError(f"not over within {self._order.limit} s: {self.killed} killed, {self.died} died")
        code = victim.end()
        assert code in (0, -signal.SIGKILL), f"a process ended with {code}"
        self.died += code != 0
        more = code != 0 or bool(self._asleep)
        while code == 0 and self._asleep:
            # Late as it is, they may still change something.
            self._wake()
        return more

    def _strike(self, victim: Victim) -> None:
        self.killed += 1
        if self._order.means == "stop" and self._put_to_sleep(victim):
            return
        victim.send(signal.SIGTERM if self._order.means == "term" else signal.SIGKILL)
        code = victim.end()
        # Whatever it is told, it may be at work on something deadly.
        assert code == -signal.SIGKILL or (code == 0 and self._order.means == "term"), f"a process ended with {code}"

    def _put_to_sleep(self, victim: Victim) -> bool:
        """Not in the middle of a write where that would stop everybody. The one that slept longest wakes up."""
        if not (victim.stop() and writable(self._order.source) and writable(self._order.target)):
            return False
        self._asleep.append(victim)
        if len(self._asleep) > MOST_ASLEEP:
            self._wake()
        return True

    def _wake(self) -> None:
        """It goes on where it was, as if no time had passed; and soon ends for good."""
        zombie = self._asleep.pop(0)
        zombie.send(signal.SIGCONT)
        time.sleep(AWAKE)  # noqa: TID251 - as above
        zombie.send(signal.SIGKILL)
        zombie.end()


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    for url in {order.source, order.target}:
        # What is imported here need not be in every child.
        import_module(f"redrive.stores.{kind_of(url)}")
    logging.basicConfig(filename=Path(order.folder) / "log", level=logging.WARNING)
    clock = HastyClock()
    order.ledger.touch()
    _done(lambda: send(order, clock))
    chase = Chase(order, clock)
    chase.run()

    def seen() -> object:
        with mailboxes(order, clock) as boxes:
            keys = keys_of(order.messages, order.deadly)
            found = look(keys, boxes.requests, boxes.dead, boxes.replies, order.ledger)
            return msgspec.to_builtins(found)

    print(json.dumps({**_done(seen), "kills": chase.killed, "died": chase.died}))  # noqa: T201 - the answer to whoever started it


def _done(work: Callable[[], object]) -> Any:
    code, answer = Child(work).wait()
    assert code == 0
    return answer


if __name__ == "__main__":
    main()
