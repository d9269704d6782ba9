"""A process with a group of loops ends in good order. By a signal, by its watchdog when it is stuck, and at its own end
while threads wait.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive.mailboxes import SQLiteMailbox

HANGS = 120
SCRIPT = """
import sys, threading
from redrive.mailboxes import DLQConsumer, LoopGroup, SQLiteMailbox

path, threshold = sys.argv[1], float(sys.argv[2])
dead_letters = SQLiteMailbox("requests-dlq", path)

begun = threading.Event()

def handler(letter):
    begun.set()
    print("begun", flush=True)
    # Told to stop, it works on until somebody closes its input.
    sys.stdin.read()

def beat():
    # A machine that takes long to come to the handler is not what is stuck here.
    while not begun.wait(0.02):
        consumer.heartbeat.beat()

consumer = DLQConsumer(mailbox=dead_letters, handler=handler)
threading.Thread(target=beat, daemon=True).start()
group = LoopGroup(loops=[consumer], watchdog_threshold=threshold, watchdog_interval=0.1, health_port=0)
group.run(wait_time_seconds=0.1)
print("ended", flush=True)
"""


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    path = tmp_path / "redrive.db"
    mailbox: SQLiteMailbox[dict[str, int], None] = SQLiteMailbox("requests-dlq", str(path), dead_letters=True)
    with mailbox:
        mailbox.send({"number": 1})
    return path


def depth(path: Path) -> int:
    mailbox: SQLiteMailbox[Any, None] = SQLiteMailbox("requests-dlq", str(path))
    with mailbox:
        return mailbox.approximate_count()


def start(path: Path, threshold: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(threshold)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if (said := process.stdout.readline()) != "begun\n":
        process.kill()
        raise AssertionError((said, process.communicate()))
    return process


def test_a_signal_lets_the_letter_under_way_end_and_the_process_too(letters: Path) -> None:
    with start(letters, 720) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (0, "ended\n"), err
    assert depth(letters) == 0


def test_a_stuck_process_is_killed_by_its_watchdog_and_says_where_it_was(letters: Path) -> None:
    with start(letters, 2) as process:
        assert process.wait(timeout=HANGS) == -signal.SIGKILL
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.stdin is not None
    assert "no heartbeat of requests-dlq" in err
    assert "in handler" in err
    assert depth(letters) == 1


WAITING = """
import sys, threading, time
from redrive.mailboxes import *
from redrive.mailboxes.agents import *

class Echo:
    def evaluate(self, prompt):
        return prompt

url = f"sqlite:///{sys.argv[1]}"
box, dead = open_mailbox("box", url), open_mailbox("dead", url)
loop = MainLoop(adapter=Echo(), requests=box, dlq=DLQPolicy(dead))
consumer = DLQConsumer(mailbox=dead, handler=print)
for target in (loop.run, consumer.run, lambda: print(open_mailbox("other", url).receive(wait_time_seconds=20))):
    threading.Thread(target=target, daemon=True).start()
while not (loop.running and consumer.running):
    time.sleep(0.01)  # nobody tells when a thread of a process is about to wait
time.sleep(0.1)  # most are in the middle of their wait by then; if not, they are ended before it, as quietly
"""


def test_a_process_that_ends_has_nothing_to_complain_of(tmp_path: Path) -> None:
    """Its threads still wait for messages. They get none, and its loops stop."""
    command = [sys.executable, "-c", WAITING, str(tmp_path / "one.db")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")
