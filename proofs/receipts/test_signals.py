"""Signals to pollers and receipt commands. A poller lets jobs finish at the first and cancels them at the second; a
command that gets Ctrl-C says how far it came, and the rest is durable.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.blocking import Redrive
from redrive.cli.exits import Exit
from tests.receipts.test_cli import Shell, dead, shell
from tests.receipts.test_cli_waiting import HINT, waiting
from tests.support.broker import OK, Broker, limited, status
from tests.support.cli import environment, on_sqlite, on_store

__all__ = ["on_store", "shell"]
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
            process.wait(1)
        process.send_signal(sign)
        _, complaints = process.communicate(timeout=HANGS)
    with Redrive(url) as app:  # delivered or not: it is durable
        (kept,) = app.find("queue:receipts payload.receipt.status=failed").items
    assert json.loads(kept.payload)["receipt"]["error_metadata"]["code"] == "SHUTDOWN_CANCELLED", complaints


def begun(shell: Shell, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "redrive", "receipts", *args]
    piped = subprocess.PIPE
    return subprocess.Popen(command, cwd=shell.folder, env=environment(), stdout=piped, stderr=piped, text=True)


@on_sqlite
def test_ctrl_c_ends_a_recovery(shell: Shell, broker: Broker) -> None:
    ids = dead(shell, "a", "b", "c")
    broker.script(OK, limited(30))
    with begun(shell, "recover", "--endpoint", broker.url, "--transport", "http") as process:
        broker.wait_for(2)
        assert process.stdout is not None
        assert (process.stdout.readline().split(), len(broker.calls)) == (ids[:1], 2), "told as soon as delivered"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (Exit.INTERRUPTED, ""), err
    assert err.endswith("delivered 1\ninterrupted: 2 receipts were not reached; run it again to continue\n")


@on_sqlite
def test_ctrl_c_leaves_what_waits(shell: Shell, broker: Broker) -> None:
    waiting(shell, "a", base=60.0)
    broker.script(status(503))
    with begun(shell, "send", "--waiting", "--endpoint", broker.url) as process:
        broker.wait_for(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (Exit.INTERRUPTED, ""), err
    assert err.endswith("delivered 0\ninterrupted: 1 receipt not delivered yet; it is durable\n")
    assert shell("list").err == f"1 receipt waits to be delivered: {HINT}"
