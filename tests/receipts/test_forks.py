"""A child that a handler of a poller forks ends where the handler ends: the job and its receipt are its parent's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import environment
from tests.support.warm_python import WarmPython

pytestmark = pytest.mark.slow

SCRIPT = """
import asyncio, json, os, signal, sys, warnings
from redrive.receipts import ReceiptClient, WorkPoller

os.register_at_fork(after_in_child=lambda: signal.alarm(60))  # a child that hangs ends
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
parent, told = os.getpid(), {}
jobs = [{"lease_id": how, "task_id": how} for how in ("raise", "exit", "return", "interrupt")]

def fork(job):
    child = os.fork()
    if child == 0:
        if job.lease_id == "raise":
            raise ValueError("in the child")
        if job.lease_id == "exit":
            sys.exit(3)
        if job.lease_id == "interrupt":
            raise KeyboardInterrupt
        return "of the child"
    return f"the child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"

async def async_fork(job):
    return fork(job)

async def poll(most):
    given, jobs[:] = jobs[:most], jobs[most:]
    return given

async def main():
    ended = asyncio.Event()

    async def deliver(receipt, key, tenant_id):
        assert os.getpid() == parent
        if receipt.final:
            told[receipt.lease_id] = receipt.summary
        if len(told) == 4:
            ended.set()

    async with ReceiptClient(None, sys.argv[1], transport=deliver, log=False) as client:
        poller = WorkPoller(client, HANDLER, poll=poll, polling_interval=0.01)
        running = asyncio.create_task(poller.run())
        await ended.wait()
        await poller.stop()
        await running

asyncio.run(main())
print(json.dumps(told), flush=True)
"""


@pytest.mark.parametrize("handler", ["fork", "async_fork"])
def test_a_child_of_a_handler_sends_no_receipt(handler: str, tmp_path: Path, warm_python: WarmPython) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("HANDLER", handler))
    ran = warm_python.run(str(script), f"sqlite:///{tmp_path}/redrive.db", cwd=tmp_path, env=environment())
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [
        {
            "raise": "the child ended with 1",
            "exit": "the child ended with 3",
            "return": "the child ended with 0",
            "interrupt": "the child ended with 1",
        }
    ]
