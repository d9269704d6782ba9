"""A poller without `await` that is told to end by signals: the first lets jobs finish, the second cancels them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.blocking import Redrive

pytestmark = pytest.mark.slow
HANGS = 150

SCRIPT = """
import sys, threading
from redrive.receipts.blocking import ReceiptClient, WorkPoller

jobs, ended = [{"lease_id": "a", "task_id": "a"}], threading.Event()

def poll(most):
    given, jobs[:] = jobs[:most], jobs[most:]
    return given

def handle(job):
    print("begun", flush=True)
    while not job.cancel_requested:
        ended.wait(0.01)
    raise RuntimeError("told to end")

async def deliver(receipt, key, tenant_id):
    pass

with ReceiptClient(None, sys.argv[1], transport=deliver, log=False) as client:
    WorkPoller(client, handle, poll=poll, polling_interval=0.05, drain_timeout="1h", job_timeout="2h").run()
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_cancels_jobs(tmp_path: Path, sign: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/redrive.db"
    command = [sys.executable, "-c", SCRIPT, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(sign)
        with pytest.raises(subprocess.TimeoutExpired):  # its job may take an hour
            process.wait(0.5)
        process.send_signal(sign)
        _, complaints = process.communicate(timeout=HANGS)
    with Redrive(url) as app:  # delivered or not: it is durable
        (kept,) = app.find("queue:receipts payload.receipt.status=failed").items
    assert json.loads(kept.payload)["receipt"]["error_metadata"]["code"] == "SHUTDOWN_CANCELLED", complaints
