"""`redrive item …` and `redrive letters skip`: what binds items to each other, and what ends them."""

import json
import sys
from pathlib import Path

import pytest

from redrive import Dead, Policy, Redrive, keep_output
from redrive.cli.exits import Exit
from tests.support.bound import lease_in, line_in, with_app
from tests.support.cli import Told, here, letters_in, on_sqlite, on_terminal, store_in

pytestmark = pytest.mark.usefixtures("on_store")
COVERED = "password=[redacted]"


async def bound(app: Redrive) -> list[str]:
    app.queue("q")
    app.policy("gentle", Policy())
    first = await app.enqueue("q", "first", delay="1d")
    second = await app.enqueue(
        "q",
        "second",
        priority="high",
        order_key="cust-9",
        limit_key="host",
        dedupe_key="order-1",
        dedupe_window="90m",
        dedupe_scope="store",
        after=[first],
        on_dead="die",
        policy="gentle",
    )
    return [first, second]


def test_an_item_tells_what_it_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    told = here(capsys, "item", "show", second[:12])
    assert (told.code, told.err) == (Exit.DONE, "")
    header = told.out.partition("\n\n")[0].splitlines()[1:]
    lines = dict(line.split(maxsplit=1) for line in header)
    assert lines["hold"] == "after: it waits for others to be done"
    assert lines["blocked"] == f"by {first}"
    assert lines["priority"] == "high"
    assert lines["order"] == "key cust-9"
    assert lines["limit"] == "key host"
    assert lines["dedupe"] == "key order-1 in the whole store, for 1h30m from its enqueue"
    assert lines["after"] == f"{first}, dies if one of them does"
    assert lines["policy"] == "gentle"
    assert "(in " in here(capsys, "item", "show", first).out


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    shown = json.loads(here(capsys, "item", "show", second, "--json").out)
    assert shown["state"] == "ready"
    assert (shown["hold"], shown["blocked_by"], shown["after"], shown["on_dead"]) == ("after", [first], [first], "die")
    assert (shown["order_key"], shown["limit_key"], shown["policy"]) == ("cust-9", "host", "gentle")
    assert (shown["dedupe_key"], shown["dedupe_scope"], shown["dedupe_window"]) == ("order-1", "store", 5400)
    assert (shown["priority"], shown["gap"], shown["cancel_requested"]) == ("high", None, None)
    plain = json.loads(here(capsys, "item", "show", first, "--json").out)
    assert {plain[name] for name in ("hold", "order_key", "dedupe_key", "dedupe_window", "on_dead", "policy")} == {None}


def test_an_item_that_waits_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    told = here(capsys, "item", "cancel", second[:10], first, "--reason", "ordered twice")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [second, first], "cancelled 2\n")
    shown = json.loads(here(capsys, "item", "show", second, "--json").out)
    assert (shown["state"], shown["deeds"][0]["change"], shown["deeds"][0]["reason"]) == (
        "cancelled",
        "cancel",
        "ordered twice",
    )
    again = here(capsys, "item", "cancel", second, "--reason", "x")
    assert (again.code, again.out) == (Exit.CONFLICT, "")
    assert "only a ready or running item can be cancelled" in again.err


def test_what_runs_is_asked_or_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def two(app: Redrive) -> None:
        app.queue("q")
        await app.enqueue("q", 1)

    with_app(tmp_path, two)
    (item_id,) = lease_in(tmp_path, "q")
    asked = here(capsys, "item", "cancel", item_id, "--reason", "too slow")
    assert (asked.code, asked.err) == (Exit.DONE, "cancelled 0, asked to stop 1\n")
    shown = here(capsys, "item", "show", item_id).out
    assert "asked for by " in shown
    assert ": too slow" in shown
    assert "worker    ghost, lease until" in shown
    forced = here(capsys, "item", "cancel", item_id, "--reason", "it hangs", "--force", "--json")
    assert json.loads(forced.out) == {"dry_run": False, "cancelled": [item_id], "skipped": []}
    assert json.loads(here(capsys, "item", "show", item_id, "--json").out)["state"] == "cancelled"


def test_a_dry_run_of_cancel_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    told = here(capsys, "item", "cancel", first, second, "--reason", "x", "--dry-run")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [first, second], "would cancel 2\n")
    assert json.loads(here(capsys, "item", "show", first, "--json").out)["state"] == "ready"


@on_sqlite
def test_an_unknown_item_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = with_app(tmp_path, bound)
    told = here(capsys, "item", "cancel", first, "nonsense", "--reason", "x")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "nothing was cancelled" in told.err
    assert json.loads(here(capsys, "item", "show", first, "--json").out)["state"] == "ready"


def test_a_follower_names_the_head_and_the_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, second, third = line_in(tmp_path, 3)
    shown = here(capsys, "item", "show", third).out
    assert "order: the head of its order key goes first" in shown
    assert f"by {head}" in shown
    told = here(capsys, "letters", "skip", head[:10], "--reason", "customer waits")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [head], "passed 1\n")
    assert f"it was let past {head}, which is dead" in here(capsys, "item", "show", second).out
    assert json.loads(here(capsys, "item", "show", second, "--json").out)["gap"] == head
    again = here(capsys, "letters", "skip", head, "--reason", "x")
    assert (again.code, again.out) == (Exit.CONFLICT, "")


def test_a_parked_follower_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, second = line_in(tmp_path, 2, order="park")
    assert "parked: the head of its order key is dead" in here(capsys, "item", "show", second).out
    told = here(capsys, "letters", "skip", "--where", "key:cust-9", "--reason", "x", "--yes", "--json")
    assert json.loads(told.out) == {"dry_run": False, "passed": [head], "skipped": []}


def test_skip_by_filter_needs_a_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line_in(tmp_path, 2)
    told = here(capsys, "letters", "skip", "--where", "queue:orders", "--reason", "x")
    assert (told.code, told.out) == (Exit.REFUSED, "")
    assert "1 letter would be passed, and there is no terminal to ask (add --yes" in told.err


def test_a_letter_that_blocks_nobody_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    told = here(capsys, "letters", "skip", letter, "--reason", "x")
    assert (told.code, told.out) == (Exit.CONFLICT, "")
    assert f"skipped {letter}:" in told.err


@on_sqlite
def test_on_a_terminal_it_asks_before_it_passes_many(tmp_path: Path) -> None:
    head, _ = line_in(tmp_path, 2)
    where = ("letters", "skip", "--where", "queue:orders", "--reason", "x")
    told = on_terminal(*where, cwd=tmp_path, keys="n\n")
    assert told.code == Exit.REFUSED
    assert "Let go on what waits behind 1 letter? [y/N]" in told.out
    assert head[:8] in told.out
    assert on_terminal(*where, cwd=tmp_path, keys="y\n").code == Exit.DONE


def test_set_policy_of_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    data = '{"max_attempts":10}'
    tried = here(capsys, "item", "set-policy", first, "--policy", data, "--reason", "x", "--dry-run", "--json")
    assert json.loads(tried.out) == {"dry_run": True, "changed": [first], "skipped": []}
    told = here(capsys, "item", "set-policy", "--where", "queue:q", "--policy", data, "--reason", "INC-88", "--yes")
    assert (told.code, sorted(told.out.split()), told.err) == (Exit.DONE, sorted([first, second]), "changed 2\n")
    shown = json.loads(here(capsys, "item", "show", second, "--json").out)
    assert (shown["policy"], shown["order_key"]) == (data, "cust-9")
    assert [(deed["change"], deed["reason"]) for deed in shown["deeds"]] == [("set_policy", "INC-88")]
    cleared = here(capsys, "item", "set-policy", first[:12], "--clear", "--reason", "as before")
    assert (cleared.code, cleared.err) == (Exit.DONE, "changed 1\n")
    assert json.loads(here(capsys, "item", "show", first, "--json").out)["policy"] is None


def test_run_now_and_expire_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    tried = here(capsys, "item", "expire", first, "--reason", "x", "--dry-run", "--json")
    assert json.loads(tried.out) == {"dry_run": True, "expired": [first], "skipped": []}
    told = here(capsys, "item", "run-now", "--where", "queue:q", "--reset", "--reason", "INC-88", "--yes")
    assert (told.code, sorted(told.out.split()), told.err) == (Exit.DONE, sorted([first, second]), "rescheduled 2\n")
    expired = here(capsys, "item", "expire", first, "--reason", "too late")
    assert (expired.code, expired.err) == (Exit.DONE, "expired 1\n")
    shown = json.loads(here(capsys, "letters", "show", first, "--json").out)
    assert (shown["reason"], shown["error"]) == ("expired", "redrive.Expired")
    assert [deed["change"] for deed in shown["deeds"]] == ["run_now", "expire"]
    over = here(capsys, "item", "run-now", first, "--reason", "x")
    assert (over.code, "it is dead; only a waiting item can be run now" in over.err) == (Exit.CONFLICT, True)
    neither = here(capsys, "item", "expire", "--reason", "x")
    assert (neither.code, "by id or by --where" in neither.err) == (Exit.USAGE, True)


def test_park_and_unpark_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = with_app(tmp_path, bound)
    told = here(capsys, "item", "park", first, "--label", "schema", "--reason", "waits for 1.4")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [first], "parked 1\n")
    shown = json.loads(here(capsys, "item", "show", first, "--json").out)
    assert (shown["hold"], shown["deeds"][0]["change"]) == ("parked:schema", "park")
    assert "parked: by an operator, as schema" in here(capsys, "item", "show", first).out
    why = here(capsys, "item", "explain", first).out
    assert "it was parked (schema) by" in why
    assert "waits for 1.4" in why
    assert f"redrive item unpark {first[:8]}" in why
    listed = here(capsys, "item", "list", "--where", "state:parked", "--json").out
    assert [(one["id"], one["state"]) for one in json.loads(listed)["items"]] == [(first, "parked")]
    assert here(capsys, "item", "list", "--where", "hold:parked", "--quiet").out.split() == [first]
    wrong = here(capsys, "item", "park", second, "--label", "two words", "--reason", "x")
    assert (wrong.code, "is no label" in wrong.err) == (Exit.USAGE, True)
    never = here(capsys, "item", "unpark", second, "--reason", "x", "--json")
    refused = [{"id": second, "reason": "it is not parked", "code": "not_parked"}]
    assert (never.code, json.loads(never.out)["skipped"]) == (Exit.CONFLICT, refused)
    for dry in ((), ("--dry-run",)):
        assert "it is parked; unpark it first" in here(capsys, "item", "run-now", first, "--reason", "x", *dry).err
    told = here(capsys, "item", "unpark", "--where", "state:parked", "--reason", "1.4 is out", "--yes")
    assert (told.code, told.err) == (Exit.DONE, "unparked 1\n")
    assert json.loads(here(capsys, "item", "show", first, "--json").out)["hold"] is None


LINES = [f"line {number}" for number in range(30)]
OUTPUTS: dict[str, str | bytes] = {
    "text": "\r\n".join(["250 OK \x1b[2J", "password=hunter2", *LINES]),
    "json": json.dumps({"user": "ann", "token": "hunter2"}),
    "plain": '{"price": 1.10}',
    "bytes": b"\x00\xff",
    "long": "x" * 5_000,
}


async def with_output(app: Redrive) -> dict[str, str]:
    @app.handler("q")
    async def keep(which: str) -> None:
        keep_output(OUTPUTS[which])
        if which == "text":
            raise Dead("refused")

    ids = {which: await app.enqueue("q", {"which": which}) for which in OUTPUTS}
    await app.run(until_idle=True)
    return {which: str(item_id) for which, item_id in ids.items()}


def test_output_stands_under_its_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = with_app(tmp_path, with_output)
    item_id = ids["text"]
    for words in (("item", "show"), ("letters", "show")):
        lines = here(capsys, *words, item_id).out.splitlines()
        start = lines.index("      output, 289 bytes")
        assert lines[start + 1 : start + 4] == [f"        {line}" for line in ("250 OK \\x1b[2J", COVERED, "line 0")]
        assert lines[start + 20 : start + 22] == [
            "        line 17",
            f"        … cut; redrive item attempts {item_id} --json has all of it",
        ]
        assert "hunter2" not in "\n".join(lines)
    shown = {which: here(capsys, "item", "show", item_id).out for which, item_id in ids.items()}
    assert '        {\n          "user": "ann",\n          "token": "[redacted]"\n        }\n' in shown["json"]
    assert "        b'\\x00\\xff'\n" in shown["bytes"]
    assert f"        {'x' * 4_000}\n        … cut; redrive item attempts {ids['long']}" in shown["long"]


def test_output_in_the_list_of_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = with_app(tmp_path, with_output)
    told = on_terminal("item", "attempts", ids["text"][:12], cwd=tmp_path, env={"NO_COLOR": "1"})
    _, row, *under = told.out.splitlines()
    assert "redrive.Dead: refused" in row
    assert under[:2] == ["  output, 289 bytes", "    250 OK \\x1b[2J"]
    assert (len(under), under[-1]) == (22, f"    … cut; redrive item attempts {ids['text']} --json has all of it")
    assert len(here(capsys, "item", "attempts", ids["text"]).out.splitlines()) == 1
    found = {}
    for which, item_id in ids.items():
        (attempt,) = json.loads(here(capsys, "item", "attempts", item_id, "--json").out)
        found[which] = (attempt["output"], attempt["output_encoding"], attempt["output_bytes"])
    assert found == {
        "text": ("\r\n".join(["250 OK \x1b[2J", COVERED, *LINES]), "text", 289),
        "json": ('{"user":"ann","token":"[redacted]"}', "text", 35),
        "plain": ('{"price": 1.10}', "text", 15),
        "bytes": ("AP8=", "base64", 2),
        "long": ("x" * 5_000, "text", 5_000),
    }


def test_edit_a_payload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = with_app(tmp_path, bound)
    file = tmp_path / "new.json"
    file.write_text('{"to": "ann", "lines": [{"price": 1}]}\n')
    told = here(capsys, "item", "edit", first[:12], "--file", str(file), "--reason", "the form left it out")
    assert (told.code, told.out, told.err) == (Exit.DONE, f"{first} is at revision 1\n", "")
    again = here(capsys, "item", "edit", first[:12], "--file", str(file), "--reason", "twice")
    assert (again.code, again.out, again.err) == (Exit.DONE, "", "the payload is the same; nothing was changed\n")
    price = ("--set", "lines.0.price=12", "--set", 'currency="EUR"')
    told = here(capsys, "item", "edit", first, *price, "--revision", "1", "--reason", "INC-88", "--json")
    assert json.loads(told.out) == {"id": first, "revision": 2}
    for currency, words in (("CHF", "is at revision 3"), ("GBP", "already done by this request")):
        change = ("--set", f'currency="{currency}"', "--request", "t-1", "--reason", "x")
        told = here(capsys, "item", "edit", first, *change)
        assert (told.code, words in told.out + told.err) == (Exit.DONE, True)
    shown = json.loads(here(capsys, "item", "show", first, "--json").out)
    assert shown["payload"] == {"to": "ann", "lines": [{"price": 12}], "currency": "CHF"}
    assert (shown["revisions"][0]["number"], shown["revisions"][0]["payload"]) == (0, "first")
    page = here(capsys, "item", "show", first).out
    assert "revision  3, edited by" in page
    assert "INC-88" in page
    earlier = here(capsys, "item", "show", first, "--revision", "0").out
    assert (earlier.splitlines()[0].startswith("revision 0, replaced"), earlier.splitlines()[1]) == (True, '"first"')
    assert json.loads(here(capsys, "item", "show", first, "--revision", "1", "--json").out)["edited_for"] == "INC-88"
    missing = here(capsys, "item", "show", first, "--revision", "3")
    assert (missing.code, "it is at revision 3" in missing.err) == (Exit.NOT_FOUND, True)


def test_edit_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = with_app(tmp_path, bound)
    late = here(capsys, "item", "edit", first, "--set", "x=1", "--reason", "x")
    assert (late.code, "has no 'x'" in late.err) == (Exit.USAGE, True)
    bad = here(capsys, "item", "edit", first, "--set", "x=EUR", "--reason", "x")
    assert (bad.code, "is not JSON" in bad.err) == (Exit.USAGE, True)
    neither = here(capsys, "item", "edit", first, "--reason", "x")
    assert (neither.code, "no terminal for an editor" in neither.err) == (Exit.USAGE, True)
    both = here(capsys, "item", "edit", first, "--set", "x=1", "--file", "f", "--reason", "x")
    assert (both.code, "--set or --file" in both.err) == (Exit.USAGE, True)
    nowhere = here(capsys, "item", "edit", first, "--file", str(tmp_path / "none"), "--reason", "x")
    assert (nowhere.code, "cannot be read" in nowhere.err) == (Exit.USAGE, True)
    file = tmp_path / "new.json"
    file.write_bytes(b"\xff")
    raw = here(capsys, "item", "edit", first, "--file", str(file), "--reason", "x")
    assert (raw.code, "it is not JSON" in raw.err) == (Exit.USAGE, True)
    assert here(capsys, "item", "edit", first, "--file", str(file), "--raw", "--reason", "x").code == Exit.DONE
    other = here(capsys, "item", "edit", first, "--file", str(file), "--raw", "--revision", "0", "--reason", "x")
    assert (other.code, "it is at revision 1, not 0" in other.err) == (Exit.CONFLICT, True)
    here(capsys, "item", "cancel", first, "--reason", "ordered twice")
    over = here(capsys, "item", "edit", first, "--file", str(file), "--raw", "--reason", "x")
    assert (over.code, "only a letter or a waiting item can be edited" in over.err) == (Exit.CONFLICT, True)


TASKS = """
from redrive import Dead, Redrive
app = Redrive({url!r}, log=False)
@app.handler("q")
async def handle(payload):
    if payload == "bad":
        raise Dead("hopeless")
    return payload
"""


@on_sqlite
def test_one_item_is_run_here_and_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waiting(app: Redrive) -> list[str]:
        app.queue("q")
        bad = await app.enqueue("q", "bad", delay="1d")
        good = await app.enqueue("q", "good", delay="1d")
        held = await app.enqueue("q", "held", after=[good], delay="1d")
        await app.pause("q", reason="to look at some")
        return [good, bad, await app.enqueue("q", "later", after=[bad]), held]

    good, bad, behind, _ = with_app(tmp_path, waiting)
    (tmp_path / "run_here.py").write_text(TASKS.format(url=store_in(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(item_id: str, *more: str) -> Told:
        monkeypatch.delitem(sys.modules, "run_here", raising=False)  # as in a new process: an app is opened once
        return here(capsys, "item", "run", item_id, "--app", "run_here:app", *more)

    held = run(behind)
    assert (held.code, "it has the hold 'after'" in held.err) == (Exit.CONFLICT, True)
    told = run(good[:12])
    assert (told.code, told.out, told.err) == (Exit.DONE, f"{good}\tdone\n", "")
    again = run(good)
    assert (again.code, "it is done" in again.err) == (Exit.CONFLICT, True)
    died = run(bad, "--json")
    assert (died.code, json.loads(died.out)["state"]) == (Exit.FAILED, "dead")
    assert run("nowhere-to-be-found").code == Exit.NOT_FOUND
    assert here(capsys, "item", "run", good).code == Exit.USAGE


def test_set_policy_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = with_app(tmp_path, bound)
    typo = here(capsys, "item", "set-policy", first, "--policy", "gentl", "--reason", "x")
    assert (typo.code, "did you mean 'gentle'?" in typo.err) == (Exit.NOT_FOUND, True)
    wrong = here(capsys, "item", "set-policy", first, "--policy", '{"tries": 3}', "--reason", "x")
    assert (wrong.code, "'tries' is none of its fields" in wrong.err) == (Exit.USAGE, True)
    both = here(capsys, "item", "set-policy", first, "--policy", "gentle", "--clear", "--reason", "x")
    assert (both.code, "--policy or --clear" in both.err) == (Exit.USAGE, True)
    empty = here(capsys, "item", "set-policy", first, "--policy", "", "--clear", "--reason", "x")
    assert (empty.code, "a policy must not be empty" in empty.err) == (Exit.USAGE, True)
    args = ("item", "set-policy", first, "--policy", "later", "--new-policy", "--reason", "x")
    assert here(capsys, *args, "--dry-run").code == Exit.DONE
    assert here(capsys, *args[:5], "--reason", "x").code == Exit.NOT_FOUND
    assert here(capsys, *args).code == Exit.DONE
    assert json.loads(here(capsys, "item", "show", first, "--json").out)["policy"] == "later"
    here(capsys, "item", "cancel", first, "--reason", "ordered twice")
    over = here(capsys, "item", "set-policy", first, "--policy", "gentle", "--reason", "x")
    assert (over.code, "only a waiting item's policy can be replaced" in over.err) == (Exit.CONFLICT, True)
