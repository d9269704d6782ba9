"""`redrive health` and `redrive doctor`: what is wrong, and what to do about it."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.app.internals import store_of
from redrive.cli.exits import Exit
from redrive.core.item import NewItem
from redrive.core.verbs import WorkerFacts
from redrive.mailboxes import open_mailbox
from redrive.office import doors
from redrive.office.doctor import check_memory as memory
from redrive.office.health import Problem
from redrive.office.health import health as find_health
from redrive.testing import FakeClock, MemoryStore
from tests.support.bound import lease_in, line_in, with_app
from tests.support.cli import here, letters_in, on_sqlite

pytestmark = pytest.mark.usefixtures("on_store")


def health(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, str]]:
    """Exit code, and what is wrong with what."""
    told = here(capsys, "health", "--json", *args)
    found = json.loads(told.out)
    assert found["healthy"] is (told.code == Exit.DONE)
    return told.code, {problem["kind"]: problem["what"] for problem in found["problems"]}


async def trouble(app: Redrive) -> None:
    app.route("billing", capacity=1)
    app.gate("smtp")
    app.queue("mail", gate="smtp", capacity=1)

    @app.handler("orders", policy=Policy(never(), route="billing"))
    async def fail(n: int) -> None:
        raise ValueError("no")

    await app.enqueue("orders", 1)
    await app.run(until_idle=True)
    await app.enqueue("mail", 1)
    await app.open_gate("smtp", reason="they asked")


def test_everything_that_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, trouble)
    line_in(tmp_path, 2, order="park")
    assert health(capsys) == (
        Exit.UNSOUND,
        {"no_worker": "mail", "queue_full": "mail", "parked": "orders", "gate_open": "smtp", "route_full": "billing"},
    )
    piped = [line.split("\t") for line in here(capsys, "health").out.splitlines()]
    assert [line for line in piped if line[0] == "gate_open"] == [
        ["gate_open", "smtp", piped[-2][2], "redrive gate show smtp"]
    ]
    assert "they asked" in piped[-2][2]


@on_sqlite
def test_what_helps_can_be_pasted_whatever_the_names_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "it's$(x);a*b,c"

    async def troubled(app: Redrive) -> None:
        app.route(odd, capacity=1)
        app.gate(odd)
        app.queue(odd, gate=odd, capacity=1)

        @app.handler("lines", policy=Policy(never(), route=odd))
        async def fail(n: int) -> None:
            raise ValueError("no")

        await app.enqueue("lines", 1, id=odd, order_key="k")
        await app.run(until_idle=True)
        await app.enqueue("lines", 2, order_key="k")
        await app.enqueue(odd, 1)
        await app.open_gate(odd, reason="they asked")

    with_app(tmp_path, troubled)
    found = {line.split("\t")[0]: line.split("\t")[3] for line in here(capsys, "health").out.splitlines()}
    assert found.keys() == {"no_worker", "queue_full", "gate_open", "route_full", "held"}
    assert shlex.split(found.pop("no_worker"))[-1] == odd
    for do in found.values():
        told = here(capsys, *shlex.split(do)[1:], "--json")
        assert (told.code, told.err) == (Exit.DONE, "")
        assert odd in json.loads(told.out.replace("\n", "").replace("[", "[")).__repr__().replace("\\'", "'")
    explained = json.loads(here(capsys, "item", "explain", odd, "--json").out)
    assert [shlex.split(line)[3] for line in explained["do"]] == [odd] * 3


def test_work_behind_a_dead_letter_is_no_good_health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *_ = line_in(tmp_path, 3)
    (line,) = [line.split("\t") for line in here(capsys, "health").out.splitlines()]
    text = f"2 wait behind dead letter {head[:8]}"
    assert line == ["held", "orders", f"queue orders: {text}", f"redrive letters show {head[:8]}"]
    assert here(capsys, "health").code == Exit.UNSOUND
    assert ["note", "work", f"queue orders: {text}", line[3]] in [
        each.split("\t") for each in here(capsys, "doctor").out.splitlines()
    ]
    (queue,) = [each.split("\t") for each in here(capsys, "status").out.splitlines() if each.startswith("queue\t")]
    assert queue[-1] == text
    (row,) = json.loads(here(capsys, "status", "--json").out)["queues"]
    assert row["behind_letters"] == 2
    here(capsys, "letters", "skip", head, "--reason", "need not wait")
    assert "held" not in health(capsys)[1]


def by_a_mailbox(url: str, _folder: Path) -> None:
    with open_mailbox("inbox", url) as inbox:
        inbox.receive()
        inbox.send(1)


def by_a_worker(_url: str, folder: Path) -> None:
    async def work(app: Redrive) -> None:
        @app.handler("inbox")
        async def take(n: int) -> None: ...

        await app.run(until_idle=True)
        await app.enqueue("inbox", 1)

    with_app(folder, work)


@pytest.mark.parametrize("served", [by_a_mailbox, by_a_worker])
def test_who_said_that_it_stopped_serves_nothing_from_that_moment_on(
    on_store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], served: Callable[[str, Path], None]
) -> None:
    """Its last beat is a moment old, as a sign of life would be."""
    served(on_store, tmp_path)
    assert health(capsys) == (Exit.UNSOUND, {"no_worker": "inbox"})
    status = json.loads(here(capsys, "status", "--json").out)
    assert [(row["queue"], row["workers"]) for row in status["queues"]] == [("inbox", 0)]
    assert [beat["alive"] for beat in status["workers"]] == [False]
    assert here(capsys, "worker", "list", "--json").out.strip() == "[]"
    (gone,) = json.loads(here(capsys, "worker", "list", "--all", "--json").out)
    assert gone["state"] == "stopped"
    item = here(capsys, "item", "list", "-q").out.strip()
    explained = json.loads(here(capsys, "item", "explain", item, "--json").out)
    assert [why["kind"] for why in explained["why"]] == ["no_worker"]


@on_sqlite
def test_every_kind_of_wait_for_a_letter_is_told_but_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def waits(app: Redrive) -> None:
        app.queue("later")
        (letter,) = [item.id for item in await app.letters.find()]
        await app.enqueue("later", 1, after=letter)
        awaited = await app.enqueue("later", 2, delay="1h", order_key="k")
        await app.enqueue("later", 3, order_key="k")
        await app.enqueue("later", 4, after=awaited)

    (letter,) = letters_in(tmp_path, "no")
    with_app(tmp_path, waits)
    found = json.loads(here(capsys, "health", "--json").out)["problems"]
    assert [(each["kind"], each["text"]) for each in found] == [
        ("held", f"queue later: 1 waits behind dead letter {letter[:8]}")
    ]


@on_sqlite
def test_nothing_is_wrong_with_what_rests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "one", "two")
    assert health(capsys) == (Exit.DONE, {})
    assert health(capsys, "--max-letters", "1") == (Exit.UNSOUND, {"letters": ""})
    told = here(capsys, "health")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "")


@on_sqlite
def test_a_paused_queue_is_left_alone_on_purpose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def paused(app: Redrive) -> None:
        app.queue("mail")
        await app.enqueue("mail", 1)
        await app.pause("mail", reason="later")

    with_app(tmp_path, paused)
    assert health(capsys, "--oldest", "0s") == (Exit.DONE, {})
    here(capsys, "queue", "resume", "mail")
    assert health(capsys)[1] == {"no_worker": "mail"}
    lease_in(tmp_path, "mail")
    assert health(capsys)[1] == {"no_worker": "mail"}  # held by somebody who is gone


@on_sqlite
def test_what_to_start_is_told_by_the_door_that_a_queue_belongs_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def waiting(app: Redrive) -> None:
        app.queue("inbox")
        await app.enqueue("inbox", 1)
        await doors.mark(store_of(app), "inbox", "mailboxes")  # as a mailbox does it

    with_app(tmp_path, waiting)
    assert "start the process that receives from the mailbox inbox" in here(capsys, "health").out


@on_sqlite
def test_a_store_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "health")
    assert (told.code, told.out) == (Exit.STORE, "")
    told = here(capsys, "doctor", "--json")
    assert told.code == Exit.UNSOUND
    assert [check["check"] for check in json.loads(told.out)["checks"] if check["state"] == "bad"] == ["store"]
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_finds_a_sound_store_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "one")
    told = here(capsys, "doctor", "--json")
    found = json.loads(told.out)
    assert (told.code, found["sound"]) == (Exit.DONE, True)
    assert {"version", "settings", "store", "schema", "survives", "clocks", "work"} <= {
        check["check"] for check in found["checks"]
    }


@on_sqlite
@pytest.mark.parametrize(
    ("used", "most", "states"), [(89, 100, []), (90, 100, ["note"]), (100, 100, ["bad"]), (9, 0, [])]
)
def test_the_doctor_sees_that_memory_runs_out(used: int, most: int, states: list[str]) -> None:
    assert [check.state for check in memory({"used_memory": used, "maxmemory": most})] == states
    assert [*memory({})] == [], "a store on a disk"


TASKS = """
from redrive import Policy, Redrive
app = Redrive("memory:")
@app.handler("mail")
async def send(n): ...
"""


@on_sqlite
def test_the_doctor_looks_at_the_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stray(app: Redrive) -> None:
        app.queue("strays", policy="gentle")
        app.policy("gentle", Policy())
        await app.enqueue("strays", 1)
        await app.pause("strays", reason="x")

    with_app(tmp_path, stray)
    (tmp_path / "doctored.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("REDRIVE_APP", "doctored:app")
    told = here(capsys, "doctor")
    assert told.code == Exit.UNSOUND
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert ["ok", "app", "doctored:app handles: mail", ""] in lines
    bad = {line[1]: line[3] for line in lines if line[0] == "bad"}
    assert bad == {"handlers": "@app.handler('strays')", "policies": "app.policy('gentle', Policy(...))"}
    monkeypatch.setenv("REDRIVE_APP", "nowhere:app")
    told = here(capsys, "doctor")
    assert told.code == Exit.UNSOUND
    assert "bad\tapp\t" in told.out
    assert told.err == ""


async def sends_mail(app: Redrive) -> None:
    mail = app.outbox("mail")

    @app.handler("orders")
    async def order() -> None:
        app.follow_up(mail, {"to": "ada"})

    await app.enqueue("orders")
    await app.run(until_idle=True)


async def delivers_mail(app: Redrive) -> None:
    app.outbox("mail", lambda _item: None)
    await app.run(until_idle=True)


def test_an_outbox_is_listed_while_it_holds_something_and_a_finding_if_no_process_serves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_app(tmp_path, sends_mail)
    told = here(capsys, "health")
    assert told.out.strip().split("\t") == [
        "outbox_unserved",
        "mail",
        "outbox mail has 1 to deliver, and no live process delivers to it",
        "start a process that delivers to the outbox target mail",
    ]
    assert [line.split("\t")[:2] for line in here(capsys, "queue", "list").out.splitlines()] == [
        ["orders", "0"],
        ["redrive.outbox.mail", "1"],
    ]
    (item_id,) = here(capsys, "item", "list", "--quiet", "--where", "queue:redrive.outbox.mail").out.split()
    assert "a delivery to target mail" in here(capsys, "item", "explain", item_id).out
    refused = here(capsys, "queue", "push", "redrive.outbox.mail", "1")
    assert (refused.code, "outbox queue of target 'mail'" in refused.err) == (Exit.USAGE, True)
    with_app(tmp_path, delivers_mail)
    assert health(capsys) == (Exit.DONE, {})
    for command in (("queue", "list"), ("status",)):
        assert "redrive.outbox" not in here(capsys, *command).out


async def test_an_outbox_that_is_served_but_not_delivered_is_a_finding_after_five_minutes() -> None:
    clock = FakeClock()
    store = await MemoryStore(clock).open()
    queue = "redrive.outbox.mail"
    await store.put([NewItem("abcdefghij", queue, b"1"), NewItem("klmnopqrst", queue, b"2")])
    await store.beat("w", WorkerFacts((queue,)), 3_600_000)
    clock.advance("5m")
    assert (await find_health(store)).healthy
    clock.advance(1)
    (found,) = (await find_health(store)).problems
    text = "outbox mail has 2 to deliver, the oldest since 5m"
    assert found == Problem("outbox_stuck", "mail", text, "redrive item explain abcdefghij")
    clock.advance("1h")
    (alone,) = (await find_health(store)).problems
    assert (alone.kind, alone.do) == ("outbox_unserved", "start a process that delivers to the outbox target mail")
    await store.close()
