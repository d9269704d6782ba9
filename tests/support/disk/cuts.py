"""Power cuts, one after another, each under load and each looked at by a fresh store.

    python -m tests.support.disk.cuts <folder> <mode> <first seed> <cuts> [binding]

Modes: `power-loss` and `process-crash` are the store's levels; `lying` is the former on a disk that ignores syncs. One
line of JSON per cut. A seed decides the moment, what of the unsynced is left, how many processes write, and the load;
who of them comes first stays the machine's.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from redrive.errors import StoreError
from tests.support.disk import kernel
from tests.support.disk.disk import Disk
from tests.support.disk.load import DATABASE, url, work
from tests.support.disk.look import Promises, look
from tests.support.rig.facts import ENDED, Facts
from tests.support.rig.log import read_all

GENERATIONS = 3
"""So often the disk of one cut is used for the next one, with all that was promised before."""


def forked(call: Callable[[], object]) -> int:
    """A child that dies with us. A store in trouble may end it; what else goes wrong in it is its exit status."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            kernel.die_with(parent)
            call()
            status = 0
        except StoreError:
            status = 0
        except BaseException:  # noqa: BLE001 - it is shown, and the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)  # nothing of the parent's may be unwound in the child
    return pid


def is_over(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Rounds:
    def __init__(self, folder: Path, mode: str, binding: str) -> None:
        self._folder = folder
        self._lying = mode == "lying"
        self._options = {"durability": "power-loss" if self._lying else mode, "binding": binding}
        self._lasting = mode == "power-loss"
        self._generation = 0
        self._image = folder / "image"
        self._logs = folder / "logs"

    def cut(self, disk: Disk, seed: int) -> dict[str, object]:
        luck = random.Random(seed)
        goes_on = self._lasting and self._generation % GENERATIONS != 0
        if not goes_on:
            shutil.rmtree(self._logs, ignore_errors=True)
            self._logs.mkdir()
        disk.format(self._image if goes_on else None)
        shutil.rmtree(self._image, ignore_errors=True)
        if self._lying:
            disk.ignore_syncs()
        disk.power_off(after=luck.randint(1, luck.choice((300, 2_000, 4_000))))
        writers = luck.choice((1, 1, 2, 3))
        self._load(disk, seed, writers)
        disk.cut(seed, self._image)
        promises = self._promises()
        faults = asyncio.run(look(self._image / DATABASE, promises))
        self._generation = 0 if faults else self._generation + 1
        kept = {"accepted": len(promises.accepted), "ended": len(promises.ended)}
        return {"seed": seed, "writers": writers, **kept, "faults": faults}

    def _load(self, disk: Disk, seed: int, writers: int) -> None:
        store = url(disk.folder, **self._options)
        pids = []
        for number in range(writers):
            name = f"{seed}-{number}"
            pids.append(forked(lambda: self._work(disk, store, name)))  # noqa: B023 - called at once, in the child
        disk.wait_until_off(lambda: not all(map(is_over, pids)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), "the load failed, and not for the disk"

    def _work(self, disk: Disk, store: str, name: str) -> None:
        disk.leave()
        asyncio.run(work(store, self._logs, name))

    def _promises(self) -> Promises:
        facts = Facts(read_all(self._logs))
        accepted = {key for key, answer in facts.told.items() if answer == "ok"}
        ended = {
            key: one.state for key, settled in facts.settled.items() for one in settled.values() if one.state in ENDED
        }
        return Promises(facts.invoked, accepted, ended)


def main() -> None:
    folder, mode, first, cuts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rounds = Rounds(folder, mode, sys.argv[5] if len(sys.argv) > 5 else "auto")
    kernel.private_mounts()
    with Disk(folder / "disk") as disk:
        for seed in range(first, first + cuts):
            print(json.dumps(rounds.cut(disk, seed)), flush=True)  # noqa: T201 - the answer to whoever started this


if __name__ == "__main__":
    main()
