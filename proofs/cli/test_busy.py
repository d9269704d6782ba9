"""Commands in processes of their own work on a store that is in full use, and find no fault in it."""

import asyncio
import subprocess
from collections.abc import Iterable
from pathlib import Path

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from tests.support.cli import COMMAND, environment, letters_in

LOOKING = (
    ["db", "check"],
    ["letters", "replay", "--where", "queue:mail", "--reason", "x", "--yes"],
    ["db", "check", "--quick"],
    ["db", "status"],
)
ALL = (["db", "status"], ["db", "check"], ["db", "backup", "copy.db"], ["db", "migrate"])


def test_looking_while_everything_runs(on_store: str, tmp_path: Path) -> None:
    """What is half done when it is looked at is not taken for a flaw."""
    app = Redrive(on_store, log=False)

    handled = asyncio.Semaphore(0)

    @app.handler("mail", policy=Policy(backoff=never()))
    async def send(number: int) -> None:
        handled.release()
        if number % 3 == 0:
            raise ValueError("no such mailbox")

    async def busy() -> list[tuple[list[str], int | None, str]]:
        async with app:
            looking = asyncio.create_task(_look(tmp_path, LOOKING))
            working = asyncio.create_task(app.run())
            while not looking.done():
                await app.enqueue_many("mail", [{"number": number} for number in range(10)])
                # No more than are handled: there is to be much traffic, and not much to look at.
                for _ in range(10):
                    await handled.acquire()
            await app.stop()
            await working
            return await looking

    told = asyncio.run(busy())
    assert [code for _, code, _ in told] == [Exit.DONE] * len(LOOKING), told
    assert all(int(out.split()[1]) > 0 for args, _, out in told if "check" in args)


def test_all_of_db_while_an_app_is_open(tmp_path: Path) -> None:
    letters_in(tmp_path, "no such mailbox")

    async def busy() -> list[tuple[list[str], int | None, str]]:
        async with Redrive(f"sqlite:///{tmp_path}/redrive.db", log=False) as app:
            app.queue("mail")
            looking = asyncio.create_task(_look(tmp_path, ALL))
            while not looking.done():
                await app.enqueue("mail", {"item_id": "0"})
            return await looking

    told = asyncio.run(busy())
    assert [code for _, code, _ in told] == [Exit.DONE] * len(ALL), told


async def _look(folder: Path, commands: Iterable[list[str]]) -> list[tuple[list[str], int | None, str]]:
    told = []
    for args in commands:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *args, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, _ = await process.communicate()
        told.append((args, process.returncode, out.decode()[:1000]))
    return told
