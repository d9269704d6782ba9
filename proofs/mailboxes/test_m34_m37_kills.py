"""M-34, M-37 a loop is killed on every delivery, and at each step of dead-lettering. One letter, one reply."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive.mailboxes import DeadLetter, MainLoopRequest, MainLoopResult, StoreMailbox, open_mailbox
from tests.support.cli import environment
from tests.support.warm_python import WarmPython

VISIBLE = 1.0
"""Seconds until a message of a loop that was killed can be received again."""
LOOP = f"""
import os, signal, sys
from redrive.mailboxes import DLQPolicy, MainLoop, StoreMailbox
from redrive.stores.url import store_from_url
from redrive.testing.faults import FaultyStore

url, works, deliveries, point, *names = sys.argv[1:]
STEPS = ("put", "lease", "settle", "reclaim", "lease_letters", "settle_letters", "take_in", "write_documents")

def kill(_=None):
    os.kill(os.getpid(), signal.SIGKILL)

class Adapter:
    def evaluate(self, prompt):
        print("asked", flush=True)
        if works == "dies":
            kill()
        raise ValueError("no such city")

store = FaultyStore(store_from_url(url), counted=STEPS)
if point != "none":
    store.crash_at(int(point), kill)
for name in names:
    requests, dead = (StoreMailbox(f"{{role}}-{{name}}", store) for role in ("requests", "dead"))
    loop = MainLoop(adapter=Adapter(), requests=requests, dlq=DLQPolicy(dead, max_delivery_count=int(deliveries)))
    loop.run(max_iterations=1, wait_time_seconds=0, visibility_timeout={VISIBLE})
print(store.points)
"""
Loop = Callable[..., tuple[int, list[str]]]
Box = Callable[..., StoreMailbox[Any, Any]]


@pytest.fixture
def loop(shared: str, tmp_path: Path, warm_python: WarmPython) -> Loop:
    """Runs in a process of its own until the mailboxes are empty: its exit code, and the lines that it printed."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)

    def run(works: str, deliveries: int, point: int | None, *names: str) -> tuple[int, list[str]]:
        given = (works, str(deliveries), str(point or "none"), *names)
        ran = warm_python.run(str(script), shared, *given, cwd=tmp_path, env=environment())
        assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
        return ran.returncode, ran.stdout.splitlines()

    return run


@pytest.fixture
def box(shared: str) -> Iterator[Box]:
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(open_mailbox(name, shared, **options))


def send(box: Box, name: str) -> None:
    box(f"requests-{name}").send(MainLoopRequest("why"), reply_to=box(f"replies-{name}"))


def check(box: Box, name: str) -> DeadLetter[Any]:
    """One letter, an empty source, and one reply."""
    assert box(f"requests-{name}").approximate_count() == 0, name
    (letter,) = box(f"dead-{name}", body_type=DeadLetter[Any]).receive(max_messages=10)
    (reply,) = box(f"replies-{name}", body_type=MainLoopResult[Any]).receive(max_messages=10)
    assert reply.body.error is not None
    found: DeadLetter[Any] = letter.body
    return found


def wait_until_visible() -> None:
    time.sleep(VISIBLE + 0.2)  # noqa: TID251 - the lease of a real process ends by the real clock


def test_m34_a_request_that_kills_its_worker_on_every_delivery(loop: Loop, box: Box) -> None:
    send(box, "poison")
    for _ in range(2):
        assert loop("dies", 2, None, "poison") == (-signal.SIGKILL, ["asked"])
        wait_until_visible()
    code, (points,) = loop("dies", 2, None, "poison")
    assert (code, points.isdecimal()) == (0, True), "the third one does not ask the adapter"
    letter = check(box, "poison")
    assert (letter.delivery_count, "lease expired" in letter.last_error) == (2, True)


def test_m37_a_kill_at_each_step_of_dead_lettering(
    loop: Loop, box: Box, record_property: Callable[[str, object], None]
) -> None:
    send(box, "0")
    code, (_, points) = loop("fails", 1, None, "0")
    assert (code, int(points) > 1) == (0, True)
    names = [str(point) for point in range(1, int(points) + 1)]
    record_property("size", f"{len(names)} kills")
    for name in names:
        send(box, name)
        assert loop("fails", 1, int(name), name)[0] == -signal.SIGKILL, f"it came by step {name}"
    wait_until_visible()
    assert loop("fails", 1, None, *names)[0] == 0
    for name in ("0", *names):
        check(box, name)
