"""`redrive receipts …`: what is printed, what is changed, and how each command ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from redrive import Redrive
from redrive.cli import receipts_recover
from redrive.cli.exits import Exit
from redrive.cli.output import Unwritten
from redrive.receipts import dead_letters
from redrive.receipts.dead_letters import DeadLetterQueue
from tests.receipts.test_dead_letters import receipt
from tests.receipts.test_json import SEED, entry, written
from tests.support.broker import OK, Broker, Call, Step, limited, rpc_error, status
from tests.support.cli import Told, environment, here, on_sqlite, on_store, on_terminal
from tests.support.warm_child import REDRIVE
from tests.support.warm_python import WarmPython

__all__ = ["on_store"]
pytestmark = [on_sqlite, pytest.mark.slow]
SECRET = "hunter2"  # noqa: S105 - it opens nothing


class Shell:
    """Commands in this process, in the folder of the store."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path, url: str) -> None:
        self._capsys = capsys
        self.folder = folder
        self.url = url

    def __call__(self, *args: str) -> Told:
        return here(self._capsys, "receipts", *args)

    async def dead(self, *leases: str) -> list[str]:
        async with DeadLetterQueue(self.url) as queue:
            return [await queue.store(receipt(lease), attempts=5, error="boom") for lease in leases]

    def file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return name


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, on_store: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name in [name for name in os.environ if name.startswith("REDRIVE_RECEIPTS")]:
        monkeypatch.delenv(name)
    return Shell(capsys, tmp_path, on_store)


Piped = Callable[..., CompletedProcess[str]]


@pytest.fixture
def piped(shell: Shell, warm_python: WarmPython) -> Piped:
    """Commands in processes of their own, without a terminal."""

    def run(*args: str, text: str = "", **env: str) -> CompletedProcess[str]:
        return warm_python.run(REDRIVE, "receipts", *args, cwd=shell.folder, env=environment(**env), text=text)

    return run


def dead(shell: Shell, *leases: str) -> list[str]:
    return asyncio.run(shell.dead(*leases))


# -- looking -----------------------------------------------------------------------------------------------------------


def test_list_and_show(shell: Shell) -> None:
    ids = dead(shell, "abc-1", "abc-2")
    told = shell("list")
    rows = [line.split("\t") for line in told.out.splitlines()]
    assert (told.code, [row[0] for row in rows]) == (Exit.DONE, ids[::-1])
    assert rows[1][1:4] == ["abc-1", "task-abc-1", "complete"]
    assert rows[1][5:] == ["5", "redrive.errors.ReceiptError: boom"]
    assert shell("list", "-q").out.split() == ids[::-1]
    (one,) = json.loads(shell("list", "--json", "--limit", "1").out)["receipts"]
    assert (one["id"], one["receipt"], one["attempts"]) == (ids[1], receipt("abc-2"), 5)
    for key in (ids[0], ids[0][:8], "abc-1"):
        found = json.loads(shell("show", key, "--json").out)
        assert (found["id"], found["receipt"], found["state"]) == (ids[0], receipt("abc-1"), "dead")
    shown = shell("show", "abc-1").out
    assert shown.startswith("receipt complete of lease abc-1, task task-abc-1\n")
    assert "boom" in shown


def test_list_on_a_terminal_has_columns(shell: Shell) -> None:
    dead(shell, "abc-1")
    told = on_terminal("receipts", "list", "--no-color", cwd=shell.folder)
    header, row = told.out.splitlines()
    assert header.split() == ["ID", "LEASE", "TASK", "STATUS", "FAILED", "ATTEMPTS", "ERROR"]
    assert row.split()[1:4] == ["abc-1", "task-abc-1", "complete"]


def test_nothing_is_an_empty_list(shell: Shell) -> None:
    dead(shell)
    assert (shell("list").out, shell("list").err) == ("", "")
    assert json.loads(shell("list", "--json").out) == {"receipts": [], "next": None, "waiting": 0}


def test_what_is_not_there_is_told(shell: Shell) -> None:
    dead(shell, "abc-1")
    told = shell("show", "nobody")
    assert (told.code, told.err) == (
        Exit.NOT_FOUND,
        "redrive: no receipt 'nobody' (list them with redrive receipts list)\n",
    )


@pytest.mark.parametrize(
    "args",
    [
        ("list",),
        ("show", "abc-1"),
        ("export", "-"),
        ("send", "--waiting", "--endpoint", "http://127.0.0.1:9"),
        ("recover", "--endpoint", "http://127.0.0.1:9"),
        ("recover", "--dry-run"),
    ],
    ids=" ".join,
)
def test_a_queue_that_is_not_there_is_no_good_news(shell: Shell, args: tuple[str, ...]) -> None:
    """A typo must neither look like nothing to do nor become a queue."""
    dead(shell, "abc-1")
    told = shell(*args, "--queue", "receits")
    hint = "did you mean 'receipts'? otherwise list them with redrive queue list"
    assert told == Told(Exit.NOT_FOUND, "", f"redrive: no queue 'receits' ({hint})\n")
    assert asyncio.run(_queues(shell.url)) == ["receipts"]


async def _queues(url: str) -> list[str]:
    async with Redrive(url, log=False) as app:
        return [row.queue for row in (await app.tally()).queues]


@pytest.mark.parametrize("command", [("recover",), ("send", "--waiting")])
def test_an_endpoint_with_a_secret_in_it_is_refused_as_it_was_typed(shell: Shell, command: tuple[str, ...]) -> None:
    dead(shell, "abc-1")
    told = shell(*command, "--endpoint", f"https://ada:{SECRET}@broker.example")
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.startswith("redrive: --endpoint: it has a user or password in it (a token goes into REDRIVE_")
    assert SECRET not in told.err


def test_terminal_escapes_and_secrets_of_a_receipt_are_not_shown(shell: Shell) -> None:
    async def make() -> None:
        async with DeadLetterQueue(shell.url) as queue:
            said = receipt("a\x1b[2Jb", summary="x", error_metadata={"password": SECRET})
            await queue.store(said, error=f"password={SECRET}")

    asyncio.run(make())
    for args in (("list",), ("list", "--json"), ("show", "a\x1b[2Jb"), ("show", "a\x1b[2Jb", "--json")):
        told = shell(*args)
        assert told.code == Exit.DONE
        assert "\x1b" not in told.out
        assert SECRET not in told.out


def test_alerts_print_a_rule_file(shell: Shell) -> None:
    told = shell("alerts", "--prefix", "cognigate")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert "cognigate_dead_letter_queue_size > 10" in told.out
    assert "for: 15m" in told.out
    assert shell("alerts", "--prefix", "a b").code == Exit.USAGE


# -- recovery ----------------------------------------------------------------------------------------------------------


def test_recover_delivers_all(shell: Shell, broker: Broker) -> None:
    ids = dead(shell, "a", "b")
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, ids, "delivered 2\n")
    assert sorted(broker.accepted) == sorted(ids)
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "delivered 0\n")


def test_recover_ends_with_9_if_some_were_kept(shell: Shell, broker: Broker) -> None:
    ids = dead(shell, "a", "b", "c")
    broker.script(rpc_error("INVALID_STATE_TRANSITION"), rpc_error("LEASE_INVALID_OR_EXPIRED"))
    told = shell("recover", "--endpoint", broker.url, "--json")
    assert told.code == Exit.PARTLY
    found = json.loads(told.out)
    assert ([each["id"] for each in found["kept"]], found["delivered"]) == ([ids[0]], [ids[2]])
    assert [each["id"] for each in found["superseded"]] == [ids[1]]
    assert found["superseded"][0]["reason"].startswith("superseded: ")
    assert shell("list", "-q").out.split() == [ids[0]]


def test_list_says_what_a_recovery_was_told_last_and_keeps_what_it_died_of(shell: Shell, broker: Broker) -> None:
    ids = dead(shell, "abc-1", "abc-2")
    broker.script(rpc_error("INVALID_STATE_TRANSITION"), OK)
    assert shell("recover", "--endpoint", broker.url).code == Exit.PARTLY
    dead(shell, "abc-3")
    (third, first) = [line.split("\t") for line in shell("list").out.splitlines()]
    assert (first[0], third[6]) == (ids[0], "redrive.errors.ReceiptError: boom")
    assert first[6].startswith("redrive.errors.ReceiptRefused: ")
    assert "INVALID_STATE_TRANSITION" in first[6]
    told = {each["id"]: each for each in json.loads(shell("list", "--json").out)["receipts"]}
    assert (told[ids[0]]["error"], told[ids[0]]["last_error"]) == ("redrive.errors.ReceiptError: boom", first[6])
    assert told[ids[0]]["tried_at"] > told[ids[0]]["failed_at"]
    assert [(each["last_error"], each["tried_at"]) for key, each in told.items() if key != ids[0]] == [(None, None)]
    shown = json.loads(shell("show", ids[0], "--json").out)
    assert (shown["error"], shown["last_error"]) == (told[ids[0]]["error"], first[6])
    (entry,) = [each for each in json.loads(shell("export", "-").out) if each["receipt"]["lease_id"] == "abc-1"]
    assert sorted(entry) == ["attempts", "failed_at", "receipt"]


def test_one_that_can_never_be_sent_says_so_in_plain_words(
    shell: Shell, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a letter may be there from a time when an import took it in."""

    async def store() -> str:
        async with DeadLetterQueue(shell.url) as queue:
            return await queue.store(receipt("a", "pending"))

    with monkeypatch.context() as before:
        before.setattr(dead_letters, "check_sendable", lambda receipt: receipt)
        letter = asyncio.run(store())
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, broker.calls) == (Exit.PARTLY, [])
    kept = told.err.splitlines()[0]
    assert kept.startswith(f"kept {letter}: ")
    assert kept.endswith("status must be running, complete or failed, got 'pending'; it can only be discarded")


def test_a_limit_tells_what_is_left(shell: Shell, broker: Broker) -> None:
    ids = dead(shell, "a", "b", "c", "d")
    told = shell("recover", "--endpoint", broker.url, "--limit", "2")
    assert (told.code, told.out.split()) == (Exit.DONE, ids[:2])
    assert told.err == "delivered 2\n2 more dead receipts are left\n"
    found = json.loads(shell("recover", "--endpoint", broker.url, "--limit", "1", "--json").out)
    assert (found["delivered"], found["left"], found["dead"], found["waiting"]) == (ids[2:3], [], 1, 0)


@pytest.mark.parametrize("how", ["down", "503"])
def test_recover_ends_with_7_if_the_target_cannot_be_reached(shell: Shell, broker: Broker, how: str) -> None:
    ids = dead(shell, "a", "b")
    if how == "down":
        broker.down()
    else:
        broker.always(status(503))
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, told.out) == (Exit.STORE, "")
    assert "2 receipts left as they were" in told.err
    assert (
        "; 1 receipt left as it was (run it again when it is back)"
        in shell("recover", "--limit", "1", "--endpoint", broker.url).err
    )
    # Lent out twice and let go; of the five before it came here nothing is known either.
    assert "attempt 5, errors 5, crashes 0, deliveries 7 (7 without a record), replays 0" in shell("show", "a").out
    assert sorted(shell("list", "-q").out.split()) == sorted(ids)


def test_a_wrong_token_is_told_at_the_first_receipt_and_shown_nowhere(shell: Shell) -> None:
    ids = dead(shell, "a", "b")
    shell.file("token", SECRET.encode())
    with Broker(token=SECRET[::-1]) as broker:
        told = shell("recover", "--endpoint", broker.url, "--token-file", "token")
        assert (told.code, len(broker.calls)) == (Exit.STORE, 1)
    assert "check the token; 2 receipts left as they were" in told.err
    assert SECRET not in told.err
    assert sorted(shell("list", "-q").out.split()) == sorted(ids)


def test_a_dry_run_asks_nobody_and_needs_no_target(shell: Shell) -> None:
    ids = dead(shell, "a", "b", "c")
    told = shell("recover", "--dry-run", "--limit", "2")
    assert (told.code, told.out.split()) == (Exit.DONE, ids[:2])
    assert told.err == "would try 2\n1 more dead receipt is left\n"
    assert len(shell("list", "-q").out.split()) == 3


def test_the_target_can_be_in_the_settings_and_the_token_in_a_file(
    shell: Shell, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(shell, "a")
    shell.file("redrive.toml", f'[receipts]\nendpoint = "{broker.url}"\ntransport = "http"\ntenant = "shop"\n'.encode())
    shell.file("token", f"{SECRET}\n".encode())
    told = shell("recover", "--token-file", "token")
    assert (told.code, told.err) == (Exit.DONE, "delivered 1\n")
    (call,) = broker.calls
    assert (call.tool, call.headers["Authorization"]) == ("", f"Bearer {SECRET}")
    shown = here(shell._capsys, "config", "show").out  # noqa: SLF001 - of this test
    assert f"receipts.endpoint\t{broker.url}" in shown
    monkeypatch.setenv("REDRIVE_RECEIPTS_AUTH_TOKEN_FILE", "token")
    shown = here(shell._capsys, "config", "show", "--origin").out  # noqa: SLF001 - as above
    assert "receipts.auth_token\t…" in shown
    assert SECRET not in shown


def test_a_configured_file_is_taken_in_once_by_whoever_looks(shell: Shell, broker: Broker) -> None:
    dead(shell)
    (shell.folder / "dlq").mkdir()
    shell.file("dlq/receipts.json", SEED)
    shell.file("redrive.toml", b'[receipts]\nfile = "dlq/receipts.json"\n')
    told = shell("list", "-q")
    assert len(told.out.split()) == 1
    assert told.err == f"took in 1 from {shell.folder}/dlq/receipts.json\n"
    assert shell("recover", "--endpoint", broker.url).err == "delivered 1\n"
    assert (shell("list", "-q").out, shell("list", "-q").err) == ("", "")
    assert (shell.folder / "dlq" / "receipts.json").read_text() == "[]\n"


def test_output_that_does_not_arrive_keeps_nothing_from_being_delivered(
    shell: Shell, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_line: str) -> None:
        raise Unwritten("stdout cannot be written: no space left")

    dead(shell, "a", "b")
    monkeypatch.setattr(receipts_recover, "write", full)
    told = shell("recover", "--endpoint", broker.url)
    assert (told.code, len(broker.accepted)) == (Exit.FAILED, 2)
    assert "delivered 2, but stdout cannot be written" in told.err


def interrupt() -> None:
    """Ctrl-C, as the main thread gets it. To be called by another one."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_lets_go_and_says_how_far(shell: Shell, broker: Broker) -> None:
    def interrupting(call: Call, _: int) -> Step | None:
        if call.arguments["lease_id"] != "b" or told:
            return None
        interrupt()
        return limited(30)

    told: list[Told] = []
    ids = dead(shell, "a", "b", "c")
    broker.rule(interrupting)
    told.append(shell("recover", "--endpoint", broker.url))
    assert (told[0].code, told[0].out.split()) == (Exit.INTERRUPTED, ids[:1])
    assert told[0].err.endswith("delivered 1\ninterrupted: 2 receipts were not reached; run it again to continue\n")
    told.append(shell("recover", "--endpoint", broker.url))
    assert (told[1].code, told[1].out.split()) == (Exit.DONE, ids[1:])


# -- sending -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        receipt("a"),
        [receipt("a")],
        [{"receipt": receipt("a"), "failed_at": "2024-01-15T10:30:45Z", "attempts": 5}],
        json.dumps(receipt("a")).encode() + b"\n\n",
    ],
    ids=["one", "array", "entries", "lines"],
)
def test_send_delivers_what_a_file_has(shell: Shell, broker: Broker, content: object) -> None:
    told = shell("send", shell.file("some.json", content), "--endpoint", broker.url)
    assert told.code == Exit.DONE
    ((made, *rest),) = [line.split("\t") for line in told.out.splitlines()]
    assert (rest, told.err) == (["a", "complete", "delivered"], "delivered 1\n")
    assert list(broker.accepted) == [made]


def test_send_tells_what_was_not_delivered(shell: Shell, broker: Broker) -> None:
    broker.always(rpc_error("UNAUTHORIZED"))
    told = shell("send", shell.file("some.json", [receipt("a"), receipt("b")]), "--endpoint", broker.url, "--json")
    assert told.code == Exit.PARTLY
    assert [each["result"] for each in json.loads(told.out)["receipts"]] == ["dead", "dead"]
    broker.heal()
    broker.script(rpc_error("TASK_NOT_FOUND"))
    told = shell("send", shell.file("some.json", [receipt("c")]), "--endpoint", broker.url, "--max-retries", "1")
    assert (told.code, told.out.split()[-1]) == (Exit.PARTLY, "superseded")


def test_send_ends_well_when_dead_progress_of_its_lease_ends_with_it(shell: Shell, broker: Broker) -> None:
    broker.script(status(500))
    progress, end = (shell.file(f"{word}.json", receipt("a", word)) for word in ("running", "complete"))
    assert shell("send", progress, "--endpoint", broker.url, "--max-retries", "1").code == Exit.PARTLY
    told = shell("send", end, "--endpoint", broker.url)
    assert (told.code, told.err, shell("list", "-q").out) == (Exit.DONE, "delivered 1\n", "")


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("recover",), "--endpoint: no endpoint is configured"),
        (("send", "good.json"), "--endpoint: no endpoint is configured"),
        (("recover", "--endpoint", "ftp://x"), "--endpoint: ftp://x cannot be used"),
        (("recover", "--endpoint", "http://x", "--transport", "smtp"), "--transport: 'smtp' is none of them"),
        (("recover", "--endpoint", "http://x", "--timeout", "0"), "--timeout: must be greater than 0, got"),
        (("recover", "--endpoint", "http://x", "--pace", "fast"), "--pace: 'fast' is not a rate"),
        (("recover", "--endpoint", "http://x", "--limit", "0"), "Invalid value for '--limit'"),
        (("recover", "--endpoint", "http://x", "--reason", " "), "--reason: a reason is needed"),
        (("recover", "--endpoint", "http://x", "--token-file", "none"), "--token-file: none cannot be read"),
        (("recover", "--endpoint", "http://x", "--token-file", "empty"), "--token-file: empty is empty"),
        (("send", "none", "--endpoint", "http://x"), "FILE: none cannot be read"),
        (("send", "empty", "--endpoint", "http://x"), "FILE: the file contains no receipt"),
        (("send", "bad.json", "--endpoint", "http://x"), "FILE: 1 receipt cannot be sent; none was"),
        (("send", "words", "--endpoint", "http://x"), "FILE: line 1 is not JSON"),
        (("send", "latin", "--endpoint", "http://x"), "FILE: latin is not UTF-8"),
        (("send", "good.json", "--endpoint", "http://x", "--max-retries", "0"), "--max-retries: '0' cannot be used"),
        (("send", "good.json", "--endpoint", "http://x", "--backoff-base", "0"), "--backoff-base: '0' cannot be used"),
        (("import", "none"), "FILE: none cannot be read"),
        (("import", "words"), "FILE: no entry of words can be taken in; nothing was"),
        (("export", "folder"), "FILE: "),
        (("list", "--queue", ""), "--queue: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_with_the_fix_and_changes_nothing(shell: Shell, args: tuple[str, ...], said: str) -> None:
    ids = dead(shell, "a")
    (shell.folder / "folder").mkdir()
    shell.file("good.json", receipt("good"))
    shell.file("bad.json", [receipt("good"), {"lease_id": "x"}])
    shell.file("empty", b"")
    shell.file("words", b"not json")
    shell.file("latin", b'{"lease_id": "\xe9"}')
    told = shell(*args)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.splitlines()[-1].startswith(f"redrive: {said}")
    assert shell("list", "-q").out.split() == ids


def test_a_store_that_is_not_there_is_not_made(shell: Shell, broker: Broker) -> None:
    for args in (("list",), ("recover", "--endpoint", broker.url), ("recover", "--dry-run"), ("export",)):
        told = shell(*args)
        assert told.code in (Exit.STORE, Exit.NOT_FOUND), args
    assert not list(shell.folder.glob("*.db"))


def test_in_a_real_shell(shell: Shell, broker: Broker, piped: Piped) -> None:
    told = piped("send", "-", "--endpoint", broker.url, text=json.dumps(receipt("a")))
    assert (told.returncode, told.stdout.split()[1:]) == (0, ["a", "complete", "delivered"]), told.stderr
    told = piped("import", "-", text=json.dumps(SEED))
    assert (told.returncode, told.stderr) == (0, "took in 1\n")
    told = piped("recover", REDRIVE_RECEIPTS_ENDPOINT=broker.url)
    assert (told.returncode, told.stderr) == (0, "delivered 1\n")


def test_nothing_is_said_twice(shell: Shell, broker: Broker, piped: Piped) -> None:
    """Where nobody configured logging, Python writes warnings to stderr by itself."""
    (letter,) = dead(shell, "a")
    broker.script(rpc_error("INVALID_STATE_TRANSITION"))
    told = piped("recover", REDRIVE_RECEIPTS_ENDPOINT=broker.url)
    kept, summary = told.stderr.splitlines()
    assert kept.startswith(f"kept {letter}: ")
    assert summary == "delivered 0, kept 1"
    shell.file("receipts.json", written(entry("x"), entry("y"))[:-60])
    told = piped("list", REDRIVE_RECEIPTS_FILE="receipts.json")
    lines = told.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["took", "entry", "1"], lines
