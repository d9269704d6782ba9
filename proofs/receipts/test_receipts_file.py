"""R-19 a process is killed while it keeps receipts.json current. The file is whole, and current again afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redrive.receipts import DeadLetterQueue
from redrive.receipts.receipts_json import parse
from tests.receipts.test_dead_letters import receipt
from tests.support.rig.patience import eventually

KILLS = 2
WRITER = """
import asyncio, itertools, json, sys
from redrive.receipts import DeadLetterQueue

async def main():
    url, path, name = sys.argv[1:]
    async with DeadLetterQueue(url, storage_path=path) as queue:
        print("open", flush=True)
        for number in itertools.count():
            fixed = {"task_id": "t", "worker_id": "w", "status": "complete", "timestamp": "2024-01-15T10:30:00Z"}
            await queue.store({"lease_id": f"{name}-{number}", **fixed})
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@contextmanager
def writing(url: str, path: Path, name: str) -> Iterator[None]:
    """A process that stores dead letters until it is killed."""
    command = [sys.executable, "-c", WRITER, url, str(path), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield
        finally:
            process.kill()


async def test_r19_receipts_json_is_whole_after_a_kill_and_current_when_it_is_opened_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("size", f"{KILLS} kills")
    url, path = f"sqlite:///{tmp_path}/redrive.db", tmp_path / "receipts.json"
    for kill in range(KILLS):
        before = path.read_bytes() if path.exists() else b""
        with writing(url, path, str(kill)):
            # The election of the process that was killed before must end.
            check = lambda: path.exists() and path.read_bytes() != before  # noqa: E731, B023 - used at once
            await eventually(check, limit=60, what="the file is written", poll=0.1)
        assert parse(path.read_bytes()).faults == ()
    async with DeadLetterQueue(url, storage_path=path) as queue:
        await queue.store(receipt("after the kills"))
        expected = [each.receipt.to_dict() for each in await queue.get_all()]

        def is_current() -> bool:
            return [each["receipt"] for each in json.loads(path.read_bytes())] == expected

        await eventually(is_current, limit=60, what="the file is current", poll=0.5)
    assert len(expected) > KILLS
