"""A child that an adapter or a handler forks ends where that ends: messages and letters stay with its parent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.mailboxes import MainLoopResult, open_mailbox
from tests.support.cli import environment
from tests.support.stores import StoreUrl
from tests.support.warm_python import WarmPython

pytestmark = pytest.mark.slow
Run = Callable[[str, str], list[dict[str, object]]]

PRELUDE = """
import asyncio, json, os, signal, sys, warnings
from redrive.mailboxes import AutoReplay, DLQConsumer, DLQPolicy, EvalLoop, EvalRequest, Experiment, MainLoop
from redrive.mailboxes import MainLoopRequest, Replayer, ReplayRule, Sample, Score, open_mailbox, safe

os.register_at_fork(after_in_child=lambda: signal.alarm(60))  # a child that hangs ends
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
url = sys.argv[1]
requests, replies, dead = (open_mailbox(name, url) for name in ("requests", "replies", "dead"))
HOW = ("raise", "exit", "return", "interrupt")
ENDS = []

def fork(how):
    # In the parent: how the child ended.
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        return None
    ENDS.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return ENDS[-1]

def say(**told):
    print(json.dumps(told), flush=True)
"""

MAIN_LOOP = """
class Adapter:
    def evaluate(self, how):
        return fork(how)

class Async:
    async def evaluate(self, how):
        await asyncio.sleep(0)  # a turn of the loop, so that it forks from a task that was suspended
        return fork(how)

for how in HOW:
    requests.send(MainLoopRequest(how), reply_to=replies)
loop = MainLoop(adapter=ADAPTER(), requests=requests, dlq=DLQPolicy(dead, max_delivery_count=1))
loop.run(max_iterations=len(HOW), wait_time_seconds=0)
say(ends=ENDS, requests=requests.approximate_count(), dead=dead.approximate_count())
"""


@pytest.fixture
def run(tmp_path: Path, warm_python: WarmPython) -> Run:
    def run(script: str, url: str) -> list[dict[str, object]]:
        """What the parent told. A child that came to the end would have told it too."""
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + script)
        ran = warm_python.run(str(path), url, cwd=tmp_path, env=environment())
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return run


@pytest.mark.parametrize(
    ("store", "adapter"), [("sqlite", "Adapter"), ("sqlite", "Async"), ("postgres", "Adapter"), ("redis", "Async")]
)
def test_a_child_of_an_adapter_settles_nothing_of_its_parent(
    store: str, adapter: str, store_url: StoreUrl, run: Run
) -> None:
    url = store_url(store)
    told = run(MAIN_LOOP.replace("ADAPTER", adapter), url)
    assert told == [{"ends": [1, 3, 0, 1], "requests": 0, "dead": 0}]
    with open_mailbox("replies", url, body_type=MainLoopResult[int]) as replies:
        answers = [message.body for message in replies.receive(10)]
    assert sorted((answer.output, answer.error) for answer in answers) == [(0, None), (1, None), (1, None), (3, None)]


CONSUMER = """
def handler(letter):
    fork(letter.body)

async def async_handler(letter):
    await asyncio.sleep(0)  # as above
    fork(letter.body)

letters = open_mailbox("dead", url, dead_letters=True)
for kind, each in enumerate((handler, async_handler, safe(handler), safe(async_handler))):
    ENDS.clear()
    for how in HOW:
        letters.send(how)
    DLQConsumer(mailbox=letters, handler=each).run(max_iterations=len(HOW), wait_time_seconds=0)
    say(kind=kind, ends=ENDS, dead=letters.approximate_count())
"""


def test_a_child_of_a_consumers_handler_ends_no_letter(store_url: StoreUrl, run: Run) -> None:
    """Plain and async ones, bare and in `safe`."""
    told = run(CONSUMER, store_url("sqlite"))
    assert told == [{"kind": kind, "ends": [1, 3, 0, 1], "dead": 0} for kind in range(4)]


ELSEWHERE = """
def judge(output, expected):
    fork(expected)
    return Score(value=1.0, passed=True)

class Echo:
    def evaluate(self, prompt):
        return prompt

class Impatient(DLQPolicy):
    def should_dead_letter(self, message, error):
        fork(str(error))
        return True

class Failing:
    def evaluate(self, how):
        raise ValueError(how)

def forking(letter):
    how = letter.body.request
    return (fork(how), MainLoopRequest(how))[1]

samples = open_mailbox("samples", url)
for how in HOW:
    samples.send(EvalRequest(Sample(id=how, input=how, expected=how), Experiment(how)))
    requests.send(MainLoopRequest(how))
echo = MainLoop(adapter=Echo(), requests=open_mailbox("unused", url))
EvalLoop(loop=echo, evaluator=judge, requests=samples).run(max_iterations=len(HOW), wait_time_seconds=0)
say(what="evaluator", ends=ENDS, left=samples.approximate_count())
ENDS.clear()
loop = MainLoop(adapter=Failing(), requests=requests, dlq=Impatient(dead))
loop.run(max_iterations=len(HOW), wait_time_seconds=0)
say(what="policy", ends=ENDS, left=requests.approximate_count(), dead=dead.approximate_count())
ENDS.clear()
elsewhere = open_mailbox("elsewhere", url)
found = Replayer(dead).matching(lambda letter: forking(letter) and False)
say(what="predicate", ends=sorted(ENDS), dead=dead.approximate_count(), replayed=len(found.replayed))
ENDS.clear()
found = AutoReplay(dead, [ReplayRule(where=lambda letter: forking(letter) and False, after="0s", max_replays=1)]).look()
say(what="rule", ends=sorted(ENDS), dead=dead.approximate_count(), replayed=len(found.replayed))
ENDS.clear()
found = Replayer(dead).matching(transform=forking, to=elsewhere)
say(what="transform", ends=sorted(ENDS), dead=dead.approximate_count(), replayed=len(found.replayed))
"""


def test_a_child_of_whatever_else_is_called_goes_no_further(store_url: StoreUrl, run: Run) -> None:
    assert run(ELSEWHERE, store_url("sqlite")) == [
        {"what": "evaluator", "ends": [1, 3, 0, 1], "left": 0},
        {"what": "policy", "ends": [1, 3, 0, 1], "left": 0, "dead": 4},
        {"what": "predicate", "ends": [0, 1, 1, 3], "dead": 4, "replayed": 0},
        {"what": "rule", "ends": [0, 1, 1, 3], "dead": 4, "replayed": 0},
        {"what": "transform", "ends": [0, 1, 1, 3], "dead": 0, "replayed": 4},
    ]
