"""`redrive queue …`: counts, limits and who changed them, on real stores."""

import json
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from tests.support.bound import lease_in, line_in, with_app
from tests.support.cli import here, on_sqlite, on_terminal

pytestmark = pytest.mark.usefixtures("on_store")


async def limited(app: Redrive) -> None:
    app.queue("mail", max_running=1, capacity=3)
    app.queue("plain")
    await app.enqueue_many("mail", range(3), limit_key="host")


def test_a_list_in_a_pipe_has_every_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line_in(tmp_path, 3, order="park")
    with_app(tmp_path, limited)
    lease_in(tmp_path, "mail")
    told = here(capsys, "queue", "list")
    assert (told.code, told.err) == (Exit.DONE, "")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in told.out.splitlines()}
    assert list(rows) == ["mail", "orders", "plain"]
    # READY RUNNING DEAD ARCHIVED TRASH DONE CANCELLED, then OLDEST WORKERS HELD PARKED NOTE
    assert rows["mail"][:7] == ["2", "1", "0", "0", "0", "0", "0"]
    assert rows["mail"][8:] == ["0", "0", "0", "NO WORKER, FULL, AT MAX RUNNING"]
    assert rows["orders"][:3] == ["0", "0", "1"]
    assert rows["orders"][8:] == ["0", "0", "2", "-"]
    assert rows["plain"] == ["0"] * 7 + ["-", "0", "0", "0", "-"]


def test_those_behind_a_blocked_head_are_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line_in(tmp_path, 3)
    (row,) = json.loads(here(capsys, "queue", "list", "--json").out)
    assert (row["ready"], row["held"], row["parked"], row["dead"]) == (0, 2, 0, 1)
    assert not row["unattended"]
    status = json.loads(here(capsys, "status", "--json").out)
    assert status["queues"] == [row]


def test_one_queue_with_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, limited)
    told = here(capsys, "queue", "show", "mail")
    facts = dict(line.split("\t") for line in told.out.splitlines())
    assert (facts["ready"], facts["max-running"], facts["capacity"]) == ("3", "1", "3")
    assert facts["note"] == "NO WORKER, FULL"
    shown = json.loads(here(capsys, "queue", "show", "mail", "--json").out)
    assert shown["settings"]["capacity"] == 3
    assert shown["limits_reached"] == ["full"]


def test_a_policy_must_have_been_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def declared(app: Redrive) -> None:
        await limited(app)
        app.policy("patient", Policy())
        await app.enqueue("plain")  # whatever was declared since it was opened is written before

    with_app(tmp_path, declared)
    told = here(capsys, "queue", "set", "mail", "--policy", "pateint", "--reason", "slow day")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "no policy 'pateint' (did you mean 'patient'? otherwise declare it with app.policy(" in told.err
    assert "policy" not in here(capsys, "queue", "show", "mail").out
    told = here(capsys, "queue", "set", "mail", "--policy", "patient", "--reason", "slow day")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert "policy\tpatient\n" in told.out
    data = '{"max_attempts": 2, "backoff": {"kind": "constant", "base": "1h"}}'
    told = here(capsys, "queue", "set", "mail", "--policy", data, "--reason", "slow day")
    assert (told.code, told.err) == (Exit.DONE, "")
    told = here(capsys, "queue", "set", "mail", "--policy", '{"max_attempts": 0}', "--reason", "slow day")
    assert (told.code, "max_attempts: 0 cannot be used" in told.err) == (Exit.USAGE, True)
    told = here(capsys, "queue", "set", "mail", "--policy", "", "--reason", "slow day")
    assert told.code == Exit.USAGE
    assert "--policy: a policy must not be empty (use none for no policy)" in told.err
    assert "policy" in here(capsys, "queue", "show", "mail").out
    assert here(capsys, "queue", "set", "mail", "--policy", "none", "--reason", "over").code == Exit.DONE
    assert "--policy JSON|NAME" in here(capsys, "queue", "set", "-h").out


def test_every_limit_can_be_set_and_lifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, limited)
    values = {
        "max-running": "1,000",
        "max-per-key": "2",
        "rate": "100 per 1m",
        "capacity": "5000",
        "order": "skip",
        "policy": "gentle",
        "gate": "smtp",
        "keep": "7d",
        "keep-results": "90m",
        "retry-share": "30%",
        "keep-trash": "45d",
        "encrypt": "on",
    }
    args = [word for name, value in values.items() for word in (f"--{name}", value)]
    told = here(capsys, "queue", "set", "mail", *args, "--reason", "slow day")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")  # a typo must not make a gate that nothing ever opens
    assert "no gate 'smtp' (declare it with app.gate('smtp'), or say --new-gate)" in told.err
    told = here(capsys, "queue", "set", "mail", *args, "--new-gate", "--reason", "slow day")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "no policy 'gentle' (declare it with app.policy('gentle', Policy(...)), or say --new-policy)" in told.err
    told = here(capsys, "queue", "set", "mail", *args, "--new-gate", "--new-policy", "--reason", "slow day")
    assert (told.code, told.err) == (Exit.DONE, "")
    now = dict(line.split("\t") for line in told.out.splitlines())
    assert now == values | {
        "max-running": "1000",
        "rate": "100/min",
        "keep-results": "1h30m",
        "retry-share": "0.3",
    }
    always = {"order", "keep-trash", "encrypt"}
    lifted = [word for name in values if name not in always for word in (f"--{name}", "none")]
    others = ("--order", "block", "--encrypt", "off")
    told = here(capsys, "queue", "set", "mail", *lifted, *others, "--reason", "over", "--json")
    left = {"order": "block", "keep_trash": 45 * 86_400, "encrypt": False}
    assert json.loads(told.out) == dict.fromkeys([name.replace("-", "_") for name in values]) | left

    async def audit(app: Redrive) -> list[str]:
        return [entry.reason for entry in await app.letters.audit()]

    assert with_app(tmp_path, audit) == ["slow day", "over"]


@pytest.mark.parametrize("name", ["order", "keep-trash", "encrypt"])
def test_what_a_queue_always_has_cannot_be_lifted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with_app(tmp_path, limited)
    told = here(capsys, "queue", "set", "mail", f"--{name}", "none", "--reason", "x")
    assert told.code == Exit.USAGE
    assert f"--{name}: a queue always has one" in told.err


def test_what_was_shown_can_be_set_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, limited)
    first = here(capsys, "queue", "set", "mail", "--rate", "7 per 90s burst 3", "--keep", "26h", "--reason", "x").out
    args = [word for line in first.splitlines() for word in (f"--{line.split(chr(9))[0]}", line.split("\t")[1])]
    assert here(capsys, "queue", "set", "mail", *args, "--reason", "x").out == first


def test_a_capacity_below_what_is_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, limited)
    told = here(capsys, "queue", "set", "mail", "--capacity", "2", "--reason", "x")
    assert told.code == Exit.USAGE
    assert "capacity: 2 is below what 'mail' holds now (3)" in told.err
    assert json.loads(here(capsys, "queue", "show", "mail", "--json").out)["settings"]["capacity"] == 3


def test_pause_says_who_and_why_until_it_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, limited)
    told = here(capsys, "queue", "pause", "mail", "--reason", "on fire")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "paused mail\n")
    row = json.loads(here(capsys, "queue", "show", "mail", "--json").out)
    assert (row["paused"], row["paused_reason"]) == (True, "on fire")
    assert row["paused_by"]
    assert lease_in(tmp_path, "mail") == []
    told = here(capsys, "queue", "resume", "mail", "--json")
    assert json.loads(told.out) == {"queue": "mail", "paused": False}
    assert len(lease_in(tmp_path, "mail")) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("show", "mial"),
        ("set", "mial", "--rate", "1/s", "--reason", "x"),
        ("pause", "mial", "--reason", "x"),
        ("resume", "mial"),
    ],
)
@on_sqlite
def test_an_unknown_queue_is_not_made(
    args: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_app(tmp_path, limited)
    told = here(capsys, "queue", *args)
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "no queue 'mial' (did you mean 'mail'?" in told.err
    assert len(json.loads(here(capsys, "queue", "list", "--json").out)) == 2


@on_sqlite
def test_an_unknown_family_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def declare(app: Redrive) -> None:
        app.queue("hook:*", max_running=9)
        await app.enqueue("hook:a")

    with_app(tmp_path, declare)
    told = here(capsys, "queue", "pause", "hok:*", "--reason", "a slip")
    assert told.code == Exit.NOT_FOUND
    assert "no queue 'hok:*' (did you mean 'hook:*'?" in told.err
    assert here(capsys, "queue", "pause", "hook:*", "--reason", "on purpose").code == Exit.DONE
    assert here(capsys, "queue", "pause", "hook:new", "--reason", "before it is there").code == Exit.DONE


@on_sqlite
def test_a_member_has_its_own_order_until_it_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def declare(app: Redrive) -> None:
        app.queue("hook:*", order="skip")
        await app.enqueue("hook:a")

    with_app(tmp_path, declare)
    told = here(capsys, "queue", "set", "hook:a", "--order", "block", "--keep-trash", "30d", "--reason", "x")
    assert (told.code, told.out) == (Exit.DONE, "order\tblock\nkeep-trash\t30d\n")
    told = here(capsys, "queue", "set", "hook:a", "--order", "none", "--keep-trash", "none", "--reason", "x")
    assert (told.code, told.out) == (Exit.DONE, "")
    told = here(capsys, "queue", "set", "hook:a", "--retry-share", "0.5", "--reason", "x")
    assert "a member of a family and has no share of its own" in told.err
    assert here(capsys, "queue", "set", "hook:*", "--order", "none", "--reason", "x").code == Exit.USAGE


@on_sqlite
def test_on_a_terminal(tmp_path: Path) -> None:
    line_in(tmp_path, 3, order="park")
    with_app(tmp_path, limited)
    told = on_terminal("queue", "list", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "QUEUE   READY  PARKED  RUNNING" in told.out
    assert "HELD" not in told.out
    shown = on_terminal("queue", "show", "mail", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "  capacity     3 (3 now)\n" in shown.out
    status = on_terminal("status", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert "NO WORKER, FULL" in status.out


@on_sqlite
@pytest.mark.parametrize("name", ["a*b", 'a"b', "a\\b"])
def test_a_name_with_signs_of_a_filter_means_this_queue_only(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make(app: Redrive) -> None:
        for queue in (name, "axb"):

            @app.handler(queue, policy=Policy(never()))
            async def handle(dies: bool) -> None:
                if dies:
                    raise ValueError("no address")

            await app.enqueue_many(queue, [{"dies": True}, {"dies": False}])
        await app.run(until_idle=True)

    with_app(tmp_path, make)
    why = ("--reason", "x", "--yes")
    assert here(capsys, "queue", "prune", name, *why).err == "removed 1\n"
    assert here(capsys, "queue", "retry", name, "--all-dead", *why).err == "sent again 1\n"
    rows = {row["queue"]: row for row in json.loads(here(capsys, "queue", "list", "--json").out)}
    assert [(rows[each]["done"], rows[each]["dead"], rows[each]["ready"]) for each in (name, "axb")] == [
        (0, 0, 1),
        (1, 1, 0),
    ]
