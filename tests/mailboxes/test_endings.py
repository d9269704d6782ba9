"""A mailbox that ends while others still use it: closed by another thread, or with the process. And copies of one."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pytest

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.errors import MailboxClosedError
from redrive.mailboxes import DLQConsumer, DLQPolicy, LoopGroup, MainLoop, StoreMailbox, open_mailbox
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter
from tests.mailboxes.conftest import Openers
from tests.support.cli import environment
from tests.support.warm_python import WarmPython


class Late(MemoryStore):
    """What is put into it arrives when it is closed."""

    async def open(self) -> Self:
        self.asked, self.gone = threading.Event(), asyncio.Event()
        return await super().open()

    async def put(self, items: Sequence[NewItem], within: object | None = None, **how: Any) -> PutResult:
        self.asked.set()
        await self.gone.wait()
        return await super().put(items, within, **how)

    async def close(self) -> None:
        await super().close()
        self.gone.set()


def test_who_sends_while_another_closes_is_told_that_it_is_closed(clock: FakeClock) -> None:
    """Not that the store is away, which would be worth another try."""
    store = Late(clock)
    box: StoreMailbox[int, None] = StoreMailbox("box", store, clock=clock)
    assert box.approximate_count() == 0
    with ThreadPoolExecutor() as threads:
        sending = threads.submit(box.send, 1)
        assert store.asked.wait(30)
        box.close()
        with pytest.raises(MailboxClosedError, match="was closed meanwhile; nothing was done"):
            sending.result()


ENDED_EARLY = """
import asyncio, sys, threading
from redrive.blocking._process import this_process
from redrive.mailboxes import *
from redrive.mailboxes.agents import *
from redrive.stores.memory import MemoryStore

verb, asked = sys.argv[1], threading.Event()
at_once = getattr(MemoryStore, verb)

async def when_it_is_over(*args, **kwargs):
    asked.set()
    while not this_process().ending:
        await asyncio.sleep(0.001)  # nobody tells that a process has begun to end
    return await at_once(*args, **kwargs)

setattr(MemoryStore, verb, when_it_is_over)

class Echo:
    def evaluate(self, prompt):
        return prompt

store = MemoryStore()
box, dead, other = (StoreMailbox(name, store) for name in ("box", "dead", "other"))
loop = MainLoop(adapter=Echo(), requests=box, dlq=DLQPolicy(dead))
consumer = DLQConsumer(mailbox=dead, handler=print)
receive = lambda: other.receive(wait_time_seconds=20)
works = {"loop": loop.run, "consumer": consumer.run, "receive": receive}[sys.argv[2]]
threading.Thread(target=works, daemon=True).start()
asked.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("works", ["loop", "consumer", "receive"])
@pytest.mark.parametrize("verb", ["open", "configure", "lease"])
def test_a_process_that_ends_in_the_middle_of_a_first_call_has_nothing_to_complain_of(
    verb: str, works: str, tmp_path: Path, warm_python: WarmPython
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDED_EARLY)
    done = warm_python.run(str(script), verb, works, cwd=tmp_path, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_copy_is_the_mailbox_itself(mailboxes: Openers) -> None:
    """Else one would close what the other uses; and a policy could not be told as a dict."""
    box = mailboxes("memory")("box")
    box.send(1)
    (message,) = box.receive()
    policy: DLQPolicy[int, None] = DLQPolicy(box)
    for copied in (copy.copy(box), copy.deepcopy(box), copy.deepcopy(policy).mailbox, asdict(policy)["mailbox"]):
        assert copied is box
    assert copy.deepcopy(message) is message


def test_a_copy_of_a_loop_is_the_loop_itself(mailboxes: Openers) -> None:
    """Two would share what says whether it runs; and none can be sent to another process."""
    box = mailboxes("memory")("box")
    loop: MainLoop[Any, Any] = MainLoop(adapter=Adapter(), requests=box)
    consumer = DLQConsumer(mailbox=mailboxes("memory")("dead"), handler=print)
    for stays in (loop, consumer, LoopGroup([loop])):
        assert copy.copy(stays) is copy.deepcopy(stays) is stays
        with pytest.raises(TypeError, match=f"a {type(stays).__name__} stays in its process: make it in the process"):
            pickle.dumps(stays)


def test_what_stays_in_its_process_says_so(tmp_path: Path) -> None:
    with open_mailbox("box", f"sqlite:///{tmp_path / 'one.db'}") as box:
        box.send(1)
        for stays in (box, *box.receive()):
            with pytest.raises(TypeError, match="open it where it is used, by its name and URL"):
                pickle.dumps(stays)
