"""A process that a handler forks settles nothing of its parent.

It ends where the handler ends, as a program would.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = 150
"""Seconds. A child that hangs is ended before, and then its parent tells of it."""

SCRIPT = """
import asyncio, json, os, signal, sys, warnings
from redrive import Policy, Redrive, never

os.register_at_fork(after_in_child=lambda: signal.alarm(60))  # a child that hangs ends
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
HOWS = ("raise", "exit", "return", "interrupt")
app = Redrive(sys.argv[1], log=False)

def fork(how):
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise ValueError("in the child")
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        return "of the child"
    return f"the child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"

async def async_fork(how):
    # The child has a copy of the loop, but nobody turns it.
    return fork(how)

@app.handler("sync", policy=Policy(never()))
def handle(how: str) -> str:
    return fork(how)

@app.handler("async", policy=Policy(never()))
async def async_handle(how: str) -> str:
    return await async_fork(how)

@app.handler("failing", policy=Policy(never()))
async def fail(how: str) -> None:
    raise ConnectionError(how)

told = {}

def work(letter):
    told[letter.id] = fork(letter.id)

async def async_work(letter):
    told[letter.id] = await async_fork(letter.id)

async def handled(queue):
    ids = [await app.enqueue(queue, {"how": how}) for how in HOWS]
    await app.run(until_idle=True)
    return [await app.wait(one) for one in ids]

async def worked(function):
    for how in HOWS:
        await app.enqueue("failing", {"how": how}, id=how)
    await app.run(until_idle=True)
    found = await app.letters.work(HOWS, function, reason='mended')
    assert sorted(found.done) == sorted(HOWS), found
    return [told[how] for how in HOWS]

async def main():
    async with app:
        return await WHAT

print(json.dumps(asyncio.run(main())), flush=True)
"""


@pytest.mark.parametrize("what", ["handled('sync')", "handled('async')", "worked(work)", "worked(async_work)"])
def test_a_child_settles_nothing_of_its_parent(what: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("WHAT", what), f"sqlite:///{tmp_path}/redrive.db"],
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    ended = [f"the child ended with {code}" for code in (1, 3, 0, 1)]
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [ended], ran.stderr
