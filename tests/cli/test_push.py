"""`redrive queue push | prune` and `redrive item list | attempts | wait | explain`."""

import io
import json
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from tests.support.bound import line_in, with_app
from tests.support.cli import here, letters_in, on_sqlite

pytestmark = pytest.mark.usefixtures("on_store")


async def a_queue(app: Redrive) -> None:
    app.queue("mail")
    await app.pause("mail", reason="for the test")
    await app.resume("mail")


def item_of(capsys: pytest.CaptureFixture[str], item_id: str) -> dict[str, object]:
    shown: dict[str, object] = json.loads(here(capsys, "item", "show", item_id, "--json").out)
    return shown


def test_push_prints_the_id_of_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, a_queue)
    told = here(capsys, "queue", "push", "mail", '{"to": "ann"}', "--key", "k", "--in", "1h", "--priority", "high")
    assert (told.code, told.err) == (Exit.DONE, "")
    item = item_of(capsys, told.out.strip())
    assert (item["queue"], item["payload"], item["order_key"]) == ("mail", {"to": "ann"}, "k")
    assert item["priority"] == "high"
    listed = here(capsys, "item", "list", "--where", "queue:mail", "--fields", "id,state")
    assert listed.out == f"{item['id']}\tscheduled\n"


@on_sqlite
def test_push_to_a_new_member_of_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def declare(app: Redrive) -> None:
        app.queue("hook:*")
        await app.resume("hook:*")

    with_app(tmp_path, declare)
    told = here(capsys, "queue", "push", "hook:new", "1")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert item_of(capsys, told.out.strip())["queue"] == "hook:new"
    assert "no queue 'hok:new' (did you mean" in here(capsys, "queue", "push", "hok:new", "1").err
    assert "a pattern, not a queue" in here(capsys, "queue", "push", "hook:*", "1").err


@on_sqlite
def test_payloads_from_variables_and_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, a_queue)
    for args, payload in (
        (("--var", "to=ann", "--var", "n:=3"), {"to": "ann", "n": 3}),
        (('{"a": 1}', "--var", "b:=[2]"), {"a": 1, "b": [2]}),
        ((), None),
        (("[1]",), [1]),
    ):
        item_id = here(capsys, "queue", "push", "mail", *args).out.strip()
        assert item_of(capsys, item_id)["payload"] == payload


@on_sqlite
def test_payloads_from_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_app(tmp_path, a_queue)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"a":\n 1}'))
    item_id = here(capsys, "queue", "push", "mail", "-").out.strip()
    assert item_of(capsys, item_id)["payload"] == {"a": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO('1\n\n{"b": 2}\n'))
    ids = here(capsys, "queue", "push", "mail", "--lines").out.split()
    assert [item_of(capsys, each)["payload"] for each in ids] == [1, {"b": 2}]
    monkeypatch.setattr("sys.stdin", io.StringIO("1\nnonsense\n"))
    told = here(capsys, "queue", "push", "mail", "--lines")
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.startswith("redrive: line 2: it is not JSON")
    assert len(here(capsys, "item", "list", "-q").out.split()) == 3  # nothing of a set with a fault is pushed


@on_sqlite
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"s": NaN}', "is NaN or infinite"),
        (f'"{"x" * 2_000_000}"', "raise max_payload in the settings"),
        ('{"s": "\udcff"}', "half characters"),
    ],
    ids=["nan", "large", "bytes"],
)
def test_a_payload_that_cannot_be_kept_is_bad_input(
    payload: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_app(tmp_path, a_queue)
    told = here(capsys, "queue", "push", "mail", payload)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.startswith("redrive: PAYLOAD: ")
    assert said in told.err
    assert "Redrive(" not in told.err


@on_sqlite
def test_stdin_that_is_no_text_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_app(tmp_path, a_queue)
    for args in (["-"], ["--lines"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"a\xff"\n'), encoding="utf-8"))
        told = here(capsys, "queue", "push", "mail", *args)
        assert (told.code, told.out) == (Exit.USAGE, "")
        assert told.err.startswith("redrive: stdin: it is not UTF-8: byte 3 ")


@on_sqlite
def test_what_is_there_already_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, a_queue)
    first = here(capsys, "queue", "push", "mail", "1", "--dedupe", "d").out
    again = here(capsys, "queue", "push", "mail", "2", "--dedupe", "d", "--json")
    assert json.loads(again.out) == {"id": first.strip(), "duplicate": True}
    here(capsys, "queue", "push", "mail", "3", "--id", "mine")
    told = here(capsys, "queue", "push", "mail", "3", "--id", "mine")
    assert (told.code, told.out, told.err) == (Exit.DONE, "mine\n", "mine is there already; nothing was added\n")


@on_sqlite
def test_a_mistyped_queue_is_refused_unless_it_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, a_queue)
    told = here(capsys, "queue", "push", "mial", "1")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "no queue 'mial' (did you mean 'mail'? otherwise say --new" in told.err
    assert here(capsys, "queue", "push", "mial", "1", "--new").code == Exit.DONE
    assert here(capsys, "queue", "list", "-q").out == "mail\nmial\n"


@on_sqlite
def test_a_full_queue_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_app(tmp_path, a_queue)
    here(capsys, "queue", "set", "mail", "--capacity", "1", "--reason", "x")
    here(capsys, "queue", "push", "mail", "1")
    told = here(capsys, "queue", "push", "mail", "2", "--json")
    assert told.code == Exit.FAILED
    assert json.loads(told.err)["error"]["details"] == {"queue": "mail", "fill": 1, "capacity": 1}


@on_sqlite
def test_retry_and_drop_are_about_one_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = letters_in(tmp_path, "one", "two", "three")
    item_id = here(capsys, "queue", "push", "other", "1", "--new").out.strip()
    strange = here(capsys, "queue", "retry", "mail", first, item_id)
    assert (strange.code, strange.out) == (Exit.NOT_FOUND, "")
    assert "is not in 'mail' but in 'other'; nothing was done" in strange.err
    told = here(capsys, "queue", "retry", "mail", first[:10])
    assert (told.code, told.out, told.err) == (Exit.DONE, f"{first}\n", "sent again 1\n")
    again = here(capsys, "queue", "retry", "mail", first, second)
    assert (again.code, again.out) == (Exit.PARTLY, f"{second}\n")
    assert here(capsys, "queue", "drop", "mail", third, "--reason", "noise").code == Exit.REFUSED
    dropped = here(capsys, "queue", "drop", "mail", third, "--reason", "noise", "--yes", "--json")
    assert json.loads(dropped.out)["discarded"] == [third]
    assert here(capsys, "queue", "list", "--fields", "queue,ready,dead,trash").out == "mail\t2\t0\t1\nother\t1\t0\t0\n"
    assert here(capsys, "queue", "retry", "mial", "--all-dead").code == Exit.NOT_FOUND


async def three_done(app: Redrive) -> list[str]:
    @app.handler("mail", policy=Policy(never()))
    async def send(n: int) -> int:
        if n == 9:
            raise ValueError("no")
        return n

    ids = await app.enqueue_many("mail", [1, 2, 3, 9])
    await app.run(until_idle=True)
    return [str(each) for each in ids]


def test_prune_asks_counts_and_leaves_letters_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = with_app(tmp_path, three_done)
    dry = here(capsys, "queue", "prune", "mail", "--reason", "old", "--dry-run", "--json")
    assert json.loads(dry.out) == {"dry_run": True, "removed": 3}
    refused = here(capsys, "queue", "prune", "mail", "--reason", "old")
    assert (refused.code, refused.out) == (Exit.REFUSED, "")
    assert "3 items would be removed for good, and there is no terminal to ask (add --yes)" in refused.err
    assert here(capsys, "queue", "prune", "mail", "--reason", "old", "--older", "1h", "--yes").err == "removed 0\n"
    told = here(capsys, "queue", "prune", "--all", "--reason", "old", "--yes")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "removed 3\n")
    assert here(capsys, "item", "list", "-q").out.split() == [ids[3]]
    assert here(capsys, "queue", "prune", "mial", "--reason", "old").code == Exit.NOT_FOUND


@on_sqlite
def test_wait_prints_the_result_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, *_, dead = with_app(tmp_path, three_done)
    told = here(capsys, "item", "wait", done)
    assert (told.code, told.out, told.err) == (Exit.DONE, "1\n", "")
    assert json.loads(here(capsys, "item", "wait", done, "--json").out) == {"id": done, "state": "done", "result": 1}
    assert here(capsys, "item", "wait", dead).code == Exit.FAILED
    item_id = here(capsys, "queue", "push", "mail", "1").out.strip()
    told = here(capsys, "item", "wait", item_id, "--timeout", "1ms")
    assert (told.code, told.out) == (Exit.STILL_GOING, "")
    assert "is still ready" in told.err
    assert f"redrive item explain {item_id[:8]}" in told.err


@on_sqlite
def test_attempts_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (item_id,) = letters_in(tmp_path, "no \x1b[2J address, password=hunter2")
    (line,) = [line.split("\t") for line in here(capsys, "item", "attempts", item_id[:8]).out.splitlines()]
    assert (line[0], line[1], line[4], line[7]) == ("1", "1", "failed", "ValueError")
    assert "\\x1b[2J" in line[8]
    assert "hunter2" not in line[8]
    assert json.loads(here(capsys, "item", "attempts", item_id, "--jsonl").out)["ending"] == "failed"


def test_explain_says_why_and_what_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, second, _ = line_in(tmp_path, 3)
    told = here(capsys, "item", "explain", second[:10])
    assert (told.code, told.err) == (Exit.DONE, "")
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert lines[0] == ["state", "blocked"]
    assert dict(lines)["order"].startswith(f"{head[:8]} (dead since")
    assert ["do", f"redrive letters skip {head[:8]} --reason …"] in lines
    shown = json.loads(here(capsys, "item", "explain", second, "--json").out)
    assert (shown["state"], shown["why"][0]["kind"], shown["why"][0]["ids"]) == ("blocked", "order", [head])
    letter = json.loads(here(capsys, "item", "explain", head, "--json").out)
    assert "2 wait behind it under order key 'cust-9'" in [why["text"] for why in letter["why"]]
    assert "goes first under order key" in here(capsys, "item", "show", second).out


@on_sqlite
def test_explain_never_shows_a_secret_or_an_escape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (item_id,) = letters_in(tmp_path, "\x1b[2J https://ann:hunter2@example.com refused")
    for args in (("explain", item_id), ("explain", item_id, "--json"), ("show", item_id), ("list",)):
        out = here(capsys, "item", *args).out
        assert "hunter2" not in out
        assert "\x1b" not in out


@on_sqlite
def test_explain_knows_the_policy_of_an_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = (
        "from redrive import *\napp = Redrive('memory:')\n"
        "@app.handler('mail', policy=Policy(constant('1h'), max_attempts=7))\nasync def send(n): ...\n"
    )
    (tmp_path / "explained.py").write_text(tasks)
    monkeypatch.syspath_prepend(str(tmp_path))
    with_app(tmp_path, failing_once)
    item_id = here(capsys, "item", "list", "-q").out.strip()
    assert "\tattempt 1 failed: OSError" in here(capsys, "item", "explain", item_id).out
    told = here(capsys, "item", "explain", item_id, "--app", "explained:app")
    assert "\tattempt 1 of 7 failed: OSError" in told.out
    judged = "the policy of the handler: constant 1h, 7 attempts, 3 crashes"
    assert f"policy\tthe next failure is judged by {judged}\n" in told.out
    shown = json.loads(here(capsys, "item", "explain", item_id, "--app", "explained:app", "--json").out)
    assert shown["policy"] == judged
    here(capsys, "item", "set-policy", item_id, "--policy", '{"max_attempts": 9}', "--reason", "x")
    told = here(capsys, "item", "explain", item_id)
    assert "decided by" not in told.out
    judged = "policy 9 attempts of the item, over the policy of the handler"
    assert f"policy\tthe next failure is judged by {judged} (what it says is only in the code of the app)" in told.out


async def failing_once(app: Redrive) -> None:
    import asyncio

    from redrive import constant

    tried = asyncio.Event()

    @app.handler("mail", policy=Policy(constant("1h")))
    async def send(n: int) -> None:
        tried.set()
        raise OSError("no")

    await app.enqueue("mail", 1)
    running = asyncio.create_task(app.run())
    await tried.wait()
    await app.stop()
    await running


@on_sqlite
def test_items_are_found_by_state_and_age(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, second, third = line_in(tmp_path, 3)
    assert here(capsys, "item", "list", "--where", "state:blocked", "-q").out.split() == [third, second]
    assert here(capsys, "item", "list", "--where", "queue:orders", "--since", "1h", "-q").out.count("\n") == 3
    assert here(capsys, "item", "list", "--where", "state:dead", "--limit", "5", "-q").out.strip() == head
    page = here(capsys, "item", "list", "--limit", "2", "--json")
    rest = here(capsys, "item", "list", "--limit", "2", "-q", "--cursor", json.loads(page.out)["next"])
    assert rest.out.strip() == head
