"""Receipts that a client left behind before they were delivered: every command tells of them, one delivers them."""

from __future__ import annotations

import asyncio
import json

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.receipts import ReceiptClient
from tests.receipts.test_cli import Shell, dead, interrupt, shell
from tests.receipts.test_dead_letters import receipt
from tests.support.broker import OK, PATIENCE, Broker, Call, Step, rpc_error, status
from tests.support.cli import on_sqlite, on_store
from tests.support.target import Target, target

__all__ = ["on_store", "shell", "target"]
pytestmark = on_sqlite
HINT = "redrive receipts send --waiting does that, and so does any client that is opened\n"


def waiting(shell: Shell, *leases: str, queue: str = "receipts", base: float = 2.0) -> list[str]:
    """As a client that was killed leaves them."""

    async def put() -> list[str]:
        async with ReceiptClient("http://127.0.0.1:9", shell.url, queue=queue, work=False, log=False) as client:
            return [await client.submit(receipt(lease), max_retries=2, backoff_base=base) for lease in leases]

    return asyncio.run(put())


def test_what_waits_is_told_wherever_somebody_looks(shell: Shell, broker: Broker) -> None:
    waiting(shell, "a", "b")
    said = f"2 receipts wait to be delivered: {HINT}"
    told = shell("list")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", said)
    assert json.loads(shell("list", "--json").out) == {"receipts": [], "next": None, "waiting": 2}
    assert shell("recover", "--dry-run").err == f"would try 0\n{said}"
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, told.err, broker.calls) == (Exit.DONE, f"delivered 0\n{said}", [])
    assert json.loads(shell("recover", "--endpoint", broker.url, "--json").out)["waiting"] == 2


def test_send_waiting_delivers_what_waits_and_leaves_the_dead(shell: Shell, broker: Broker) -> None:
    ids = waiting(shell, "a", "b", "c")
    letters = dead(shell, "d")
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert [line.split("\t") for line in told.out.splitlines()] == [
        [each, lease, "complete", "delivered"] for each, lease in zip(ids, "abc", strict=True)
    ]
    assert (told.code, told.err, sorted(broker.accepted)) == (Exit.DONE, "delivered 3\n", sorted(ids))
    told = shell("list", "-q")
    assert (told.out.split(), told.err) == (letters, "")
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "delivered 0\n")


def test_alert_rules_of_the_settings_are_judged_while_it_sends(shell: Shell, broker: Broker, target: Target) -> None:
    waiting(shell, "a")
    dead(shell, "d")
    target.alerts(shell.folder)
    broker.rule(lambda _call, _earlier: OK if target.came.acquire(timeout=PATIENCE) else status(400))
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, told.err) == (Exit.DONE, "delivered 1\n")
    assert json.loads(target.got[0].body)["alerts"][0]["queues"] == ["receipts"]


def test_one_that_is_held_by_another_of_its_lease_waits_too(shell: Shell, broker: Broker) -> None:
    async def put() -> list[str]:
        async with ReceiptClient("http://127.0.0.1:9", shell.url, work=False, log=False) as client:
            return [await client.submit(receipt("a", "running", summary=word)) for word in ("half", "nearly")]

    ids = asyncio.run(put())
    assert json.loads(shell("list", "--json").out)["waiting"] == 2
    assert shell("send", "--waiting", "--endpoint", broker.url).code == Exit.DONE
    assert [call.key for call in broker.calls] == ids


def test_each_keeps_its_schedule_and_ends_as_it_would_elsewhere(shell: Shell, broker: Broker) -> None:
    (late,) = waiting(shell, "late", base=0.01)
    broker.script(status(503))
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, list(broker.accepted), len(broker.calls)) == (Exit.DONE, [late], 2)
    (refused,) = waiting(shell, "refused")
    broker.script(rpc_error("INVALID_STATE_TRANSITION"))
    told = shell("send", "--waiting", "--endpoint", broker.url, "--json")
    row = {"id": refused, "lease_id": "refused", "status": "complete", "result": "dead"}
    assert (told.code, json.loads(told.out)) == (Exit.PARTLY, {"receipts": [row], "left": 0})
    assert shell("list", "-q").out.split() == [refused]


def test_what_is_not_owed_any_more_is_no_failure(shell: Shell, broker: Broker) -> None:
    async def put(status: str) -> str:
        """Each in a process of its own: neither knows of the other."""
        async with ReceiptClient("http://127.0.0.1:9", shell.url, work=False, log=False) as client:
            return await client.submit(receipt("a", status))

    running, final = asyncio.run(put("running")), asyncio.run(put("complete"))
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert [line.split("\t") for line in told.out.splitlines()] == [
        [running, "a", "running", "superseded"],
        [final, "a", "complete", "delivered"],
    ]
    assert (told.code, told.err, list(broker.accepted)) == (Exit.DONE, "delivered 1, superseded 1\n", [final])
    waiting(shell, "gone", "refused")
    broker.script(rpc_error("TASK_NOT_FOUND"), rpc_error("INVALID_STATE_TRANSITION"))
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, told.err) == (Exit.PARTLY, "delivered 0, superseded 1, not delivered 1\n")


def test_what_is_no_receipt_is_told_too(shell: Shell, broker: Broker) -> None:
    async def put() -> str:
        async with Redrive(shell.url, log=False) as app:
            app.queue("receipts")
            return await app.enqueue("receipts", {"anything": "else"})

    made = asyncio.run(put())
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, told.out.rstrip("\n").split("\t")) == (Exit.PARTLY, [made, "-", "-", "dead"])


def test_another_queue_is_named_in_the_hint(shell: Shell, broker: Broker) -> None:
    waiting(shell, "a", queue="to*b")
    assert shell("list").err == ""
    told = shell("list", "--queue", "to*b")
    assert told.err.startswith("1 receipt waits to be delivered: redrive receipts send --waiting --queue 'to*b' does")
    assert shell("send", "--waiting", "--queue", "to*b", "--endpoint", broker.url).err == "delivered 1\n"


def test_a_paused_queue_is_told_instead_of_waited_for(shell: Shell, broker: Broker) -> None:
    waiting(shell, "a")

    async def pause() -> None:
        async with Redrive(shell.url, log=False, actor="ann") as app:
            await app.pause("receipts", reason="too early")

    asyncio.run(pause())
    said = "redrive: queue receipts is paused by ann: too early; nothing was sent (redrive queue resume receipts)\n"
    for what in ("--waiting", shell.file("some.json", receipt("b"))):
        told = shell("send", what, "--endpoint", broker.url)
        assert (told.code, told.out, told.err, broker.calls) == (Exit.CONFLICT, "", said, [])
    assert json.loads(shell("list", "--json").out)["waiting"] == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("send",), "FILE | -', or --waiting"),
        (("send", "some.json", "--waiting"), "FILE and --waiting exclude each other"),
        (("send", "--waiting"), "--endpoint: no endpoint is configured"),
        (("list", "--limit", "2", "--all"), "--limit and --all exclude each other"),
        (("list", "--cursor", "nonsense"), "cursor"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_told(shell: Shell, args: tuple[str, ...], said: str) -> None:
    dead(shell)
    told = shell(*args)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert said in told.err


def test_a_store_that_is_not_there_is_not_made(shell: Shell, broker: Broker) -> None:
    assert shell("send", "--waiting", "--endpoint", broker.url).code == Exit.STORE
    assert not list(shell.folder.glob("*.db"))


def test_a_cut_list_goes_on_where_it_ended(shell: Shell) -> None:
    ids = dead(shell, "a", "b", "c", "d", "e")[::-1]
    told = shell("list", "-q", "--limit", "2")
    cursor = told.err.split("--cursor ")[1].split()[0]
    assert told.err == f"there are more: --cursor {cursor} goes on, --all gives all of them\n"
    assert told.out.split() == ids[:2]
    page = json.loads(shell("list", "--json", "--limit", "2", "--cursor", cursor).out)
    assert [each["id"] for each in page["receipts"]] == ids[2:4]
    assert shell("list", "-q", "--cursor", page["next"]).out.split() == ids[4:]
    assert shell("list", "-q", "--all").out.split() == ids


def test_ctrl_c_leaves_the_rest_waiting(shell: Shell, broker: Broker) -> None:
    def interrupting(_: Call, __: int) -> Step:
        interrupt()
        return status(503)

    waiting(shell, "a", base=60.0)
    broker.rule(interrupting)
    told = shell("send", "--waiting", "--endpoint", broker.url)
    assert (told.code, told.out) == (Exit.INTERRUPTED, "")
    assert told.err.endswith("delivered 0\ninterrupted: 1 receipt not delivered yet; it is durable\n")
    assert shell("list").err == f"1 receipt waits to be delivered: {HINT}"
