"""`redrive route …`, `redrive gate …` and `redrive schedule …` on real stores."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.core import ParameterSource

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit, Talk, tell
from redrive.cli.route import set_route
from redrive.errors import ConfigError
from tests.support.bound import lease_in, with_app
from tests.support.cli import here, on_sqlite, on_terminal

pytestmark = pytest.mark.usefixtures("on_store")


async def routed(app: Redrive) -> None:
    app.route("network", capacity=2)

    @app.handler("calls", policy=Policy(never(), routes={"timeout": "network"}))
    async def fail(number: int) -> None:
        raise TimeoutError if number else ValueError("no")

    await app.enqueue_many("calls", [0, 1, 2])
    await app.run(until_idle=True)


def test_routes_with_their_letters_and_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, routed)
    told = here(capsys, "route", "list")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert [line.split("\t") for line in told.out.splitlines()] == [["-", "1", "-"], ["network", "2", "2"]]
    assert json.loads(here(capsys, "route", "list", "--json").out)[1] == {
        "route": "network",
        "open": 2,
        "capacity": 2,
        "full": True,
    }
    assert len(here(capsys, "letters", "list", "--where", "route:network", "-q").out.split()) == 2
    assert "route\tnetwork\t2\t2\n" in here(capsys, "status").out
    (letter, _) = json.loads(here(capsys, "letters", "list", "--where", "route:network", "--json").out)["letters"]
    assert letter["route"] == "network"
    assert "route     network" in here(capsys, "letters", "show", letter["id"]).out


def test_the_room_of_a_route_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, routed)
    told = here(capsys, "route", "set", "network", "--capacity", "1", "--reason", "x")
    assert told.code == Exit.USAGE
    assert "capacity" in told.err
    told = here(capsys, "route", "set", "network", "--capacity", "10,000", "--reason", "more room")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "route network has room for 10,000\n")
    told = here(capsys, "route", "set", "network", "--capacity", "none", "--reason", "no limit", "--json")
    assert json.loads(told.out) == {"route": "network", "open": 2, "capacity": None, "full": False}


NO_LIMIT = "must be between 1 and 1,000,000,000, not 99999999999 (use none for no limit)"
RATES = "(use a rate such as 100/s, 100/min, '5 per 10s' or '100/min burst 20')"
TIMES = "(use a number of seconds, or 200ms, 30s, 5m, 1h30m, 7d or PT1H30M)"


@on_sqlite
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("route", "set", "network", "--capacity", "99999999999"), f"--capacity: {NO_LIMIT}"),
        (("queue", "set", "calls", "--capacity", "99999999999"), f"--capacity: {NO_LIMIT}"),
        (("queue", "set", "calls", "--max-per-key", "99999999999"), f"--max-per-key: {NO_LIMIT}"),
        (("queue", "set", "calls", "--rate", "soon"), f"--rate: 'soon' is not a rate: … {RATES}"),
        (("letters", "replay", "abcd", "--pace", "soon"), f"--pace: 'soon' is not a rate: … {RATES}"),
        (("receipts", "recover", "--pace", "soon"), f"--pace: 'soon' is not a rate: … {RATES}"),
        (("queue", "set", "calls", "--keep", "soon"), f"--keep: 'soon' is not a duration: … {TIMES}"),
        (("queue", "set", "calls", "--keep-trash", "soon"), f"--keep-trash: 'soon' is not a duration: … {TIMES}"),
        (
            ("queue", "set", "calls", "--order", "any"),
            "--order: 'any' is none of block, park, skip (block is what a new queue has)",
        ),
        (
            ("queue", "set", "calls", "--order", "blocks"),
            "--order: 'blocks' is none of block, park, skip (did you mean 'block'?)",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_refused_is_told_in_the_words_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    """The option as it was typed, and nothing that only Python knows."""
    with_app(tmp_path, routed)
    told = here(capsys, *args, "--reason", "x")
    before, _, after = f"redrive: {said}\n".partition("…")
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.startswith(before)
    assert told.err.endswith(after)
    error = json.loads(here(capsys, *args, "--reason", "x", "--json").err)["error"]
    assert error["details"] == {"field": args[-2]}


@on_sqlite
def test_an_option_that_nobody_typed_is_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    """What the library says of a parameter may come from the settings or from users' code."""
    context = click.Context(set_route)
    error = ConfigError("cannot be used", field="capacity", hint="use None for no limit")
    tell(error, Talk(context=context))
    assert capsys.readouterr().err == "redrive: capacity: cannot be used (use None for no limit)\n"
    context.set_parameter_source("capacity", ParameterSource.COMMANDLINE)
    tell(error, Talk(context=context))
    assert capsys.readouterr().err == "redrive: --capacity: cannot be used (use none for no limit)\n"


async def gated(app: Redrive) -> None:
    app.gate("smtp", interval="1m")
    app.queue("mail", gate="smtp")
    app.queue("news", gate="smtp")
    await app.enqueue("mail", 1)


def test_a_gate_is_opened_and_closed_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, gated)
    (line,) = [line.split("\t") for line in here(capsys, "gate", "list").out.splitlines()]
    assert (line[:2], line[7]) == (["smtp", "closed"], "mail,news")
    told = here(capsys, "gate", "open", "smtp", "--reason", "they asked us to stop")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "gate smtp is open\n")
    assert lease_in(tmp_path, "mail") == []
    (gate,) = json.loads(here(capsys, "gate", "list", "--json").out)
    assert (gate["state"], gate["why"], gate["queues"]) == ("open", "they asked us to stop", ["mail", "news"])
    assert gate["by"]
    assert gate["config"]["interval"] == 60
    facts = dict(line.split("\t") for line in here(capsys, "gate", "show", "smtp").out.splitlines())
    assert facts["state"] == "open"
    assert facts["why"].endswith(": they asked us to stop")
    assert "GATE smtp OPEN" in here(capsys, "status").out
    told = here(capsys, "gate", "close", "smtp", "--reason", "they are back", "--json")
    assert json.loads(told.out)["state"] == "closed"
    assert "GATE smtp OPEN" not in here(capsys, "status").out
    assert len(lease_in(tmp_path, "mail")) == 1


@on_sqlite
def test_an_unknown_gate_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, gated)
    for args in (("show", "smpt"), ("open", "smpt", "--reason", "x"), ("close", "smpt", "--reason", "x")):
        told = here(capsys, "gate", *args)
        assert (told.code, told.out) == (Exit.NOT_FOUND, "")
        assert "no gate 'smpt' (" in told.err
    assert len(json.loads(here(capsys, "gate", "list", "--json").out)) == 1


def test_a_gate_is_removed_when_nothing_stands_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, gated)
    kept = here(capsys, "gate", "remove", "smtp", "--reason", "no longer used", "--yes")
    assert (kept.code, kept.out) == (Exit.CONFLICT, "")
    assert "gate 'smtp' has queues behind it: mail, news" in kept.err
    here(capsys, "queue", "set", "mail", "--gate", "smpt", "--new-gate", "--reason", "a typo")
    here(capsys, "queue", "set", "mail", "--gate", "smtp", "--reason", "mended")
    assert here(capsys, "gate", "list", "-q").out == "smpt\nsmtp\n"
    refused = here(capsys, "gate", "remove", "smpt", "--reason", "a typo")
    assert (refused.code, refused.out) == (Exit.REFUSED, "")
    told = here(capsys, "gate", "remove", "smpt", "--reason", "a typo", "--yes")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "removed smpt\n")
    assert here(capsys, "gate", "list", "-q").out == "smtp\n"
    for verb in ("open", "close", "remove"):
        assert here(capsys, "gate", verb, "smpt", "--reason", "x").code == Exit.NOT_FOUND
    here(capsys, "queue", "set", "mail", "--gate", "smpt", "--new-gate", "--reason", "wanted after all")
    assert here(capsys, "gate", "open", "smpt", "--reason", "x").code == Exit.DONE
    assert here(capsys, "gate", "list", "--fields", "gate,state").out == "smpt\topen\nsmtp\tclosed\n"


async def recurring(app: Redrive) -> None:
    app.queue("reports")
    app.schedule("hourly", "reports", {"kind": "short"}, every="1h", priority="low")
    app.schedule("nightly", "reports", {"kind": "long"}, cron="0 2 * * *")
    await app.enqueue("reports")


def test_schedules_are_listed_with_their_next_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, recurring)
    hourly, nightly = [line.split("\t") for line in here(capsys, "schedule", "list").out.splitlines()]
    assert (hourly[:2], hourly[3:]) == (["hourly", "reports"], ["-", "every 1h", "-"])
    assert (nightly[:2], nightly[5]) == (["nightly", "reports"], "-")
    coming = datetime.fromisoformat(nightly[2])
    assert (coming.hour, coming.minute) == (2, 0)
    assert coming > datetime.now(UTC)
    facts = dict(line.split("\t") for line in here(capsys, "schedule", "show", "hourly").out.splitlines())
    assert (facts["when"], facts["priority"], facts["last item"]) == ("every 1h", "low", "-")


def test_a_schedule_is_paused_run_resumed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, recurring)
    told = here(capsys, "schedule", "pause", "hourly", "--reason", "audit")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "paused hourly\n")
    shown = json.loads(here(capsys, "schedule", "show", "hourly", "--json").out)
    assert (shown["paused"], shown["paused_reason"], shown["next_at"]) == (True, "audit", None)
    told = here(capsys, "schedule", "run", "hourly", "--reason", "just once")
    item = json.loads(here(capsys, "item", "show", told.out.strip(), "--json").out)
    assert (item["queue"], item["payload"], item["priority"]) == ("reports", {"kind": "short"}, "low")
    told = here(capsys, "schedule", "resume", "hourly", "--json")
    assert json.loads(told.out)["paused"] is False
    refused = here(capsys, "schedule", "remove", "hourly", "--reason", "gone")
    assert (refused.code, refused.out) == (Exit.REFUSED, "")
    assert "add --yes" in refused.err
    assert here(capsys, "schedule", "remove", "hourly", "--reason", "gone", "--yes").err == "removed hourly\n"
    gone = here(capsys, "schedule", "show", "hourly")
    assert gone.code == Exit.NOT_FOUND
    assert [one["schedule"] for one in json.loads(here(capsys, "schedule", "list", "--json").out)] == ["nightly"]


@on_sqlite
def test_an_unknown_schedule_is_said_with_a_guess(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, recurring)
    told = here(capsys, "schedule", "run", "hourley", "--reason", "x")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "did you mean 'hourly'?" in told.err


@on_sqlite
def test_on_a_terminal(tmp_path: Path) -> None:
    plain = {"NO_COLOR": "1"}
    with_app(tmp_path, gated)
    with_app(tmp_path, recurring)
    with_app(tmp_path, routed)
    assert "GATE  STATE   SINCE" in on_terminal("gate", "list", cwd=tmp_path, env=plain).out
    assert "  judges      opens when 50% of" in on_terminal("gate", "show", "smtp", cwd=tmp_path, env=plain).out
    assert "SCHEDULE  QUEUE    NEXT" in on_terminal("schedule", "list", cwd=tmp_path, env=plain).out
    assert "ROUTE    OPEN  CAPACITY  NOTE" in on_terminal("route", "list", cwd=tmp_path, env=plain).out
    assert "full: route network, 2 of 2 open letters" in on_terminal("status", cwd=tmp_path, env=plain).out
    remove = ("schedule", "remove", "nightly", "--reason", "x")
    assert on_terminal(*remove, cwd=tmp_path, env=plain, keys="n\n").code == Exit.REFUSED
    assert on_terminal(*remove, cwd=tmp_path, env=plain, keys="y\n").code == Exit.DONE
