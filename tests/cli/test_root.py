import importlib
import json
from collections.abc import Iterator

import click
import pytest

from redrive import errors
from redrive.cli import exits, root
from redrive.cli.exits import Exit, Talk, tell
from tests.support.cli import here


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, root.LazyGroup):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from every_command(child, (*path, name))


COMMANDS = list(every_command(root.cli))
TREE = {
    "": "init demo status top health doctor version completion help",
    "queue": "list show push retry drop set pause resume prune",
    "item": "list show explain attempts wait cancel run run-now expire park unpark edit set-policy",
    "letters": "list show payload replay recall archive restore discard move tag note skip changes export import",
    "causes": "list show",
    "replay": "list show pause resume set-rate cancel undo",
    "view": "save list show remove",
    "receipts": "list show send recover export import alerts",
    "mailbox": "list show send receive purge",
    "webhook": "run edge hub listen hubs list show replay publish send-test",
    "webhook endpoint": "create list show update mute unmute disable enable delete rotate-secret recover",
    "webhook token": "create list revoke",
    "worker": "run list drain stop",
    "route": "list set",
    "gate": "list show open close remove",
    "schedule": "list show run pause resume remove",
    "policy": "list show explain simulate",
    "db": "status check backup migrate sql keys reencrypt",
    "alert": "list test silence silences unsilence",
    "audit": "list verify",
    "config": "show check schema",
}


def test_the_tree_has_what_is_built_and_nothing_else() -> None:
    leaves = {f"{group} {verb}".strip() for group, verbs in TREE.items() for verb in verbs.split()}
    assert {" ".join(path) for path in COMMANDS} == leaves | set(TREE)


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for path in COMMANDS:
        told = here(capsys, *path, "--help")
        assert (told.code, told.err) == (Exit.DONE, ""), path
        assert "Examples:\n" in told.out, path
        assert f"redrive {' '.join(path)}".strip() in told.out
        assert here(capsys, *path, "-h").out == told.out, path


@pytest.mark.parametrize("path", [tuple(group.split()) for group in TREE], ids=" ".join)
def test_a_group_alone_shows_its_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, *path)
    assert (told.code, told.err) == (Exit.DONE, "")
    assert told.out.startswith("Usage: redrive")


@pytest.mark.parametrize("args", [("version",), ("--version",)])
def test_version_names_redrive_python_and_sqlite(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, *args)
    assert told.code == Exit.DONE
    assert told.out.startswith("redrive ")
    assert "Python 3." in told.out
    assert "SQLite 3." in told.out


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(json.loads(here(capsys, "version", "--json").out)) == {"redrive", "python", "sqlite"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["letter"], "did you mean 'letters'?"),
        (["letters", "replya"], "did you mean 'replay'?"),
        (["item", "recall"], "did you mean 'redrive letters recall'?"),
        (
            ["xyzzy"],
            "there are init, demo, status, top, health, doctor, queue, item, letters, causes, replay, view, webhook",
        ),
        (["status", "--jsno"], "--json"),
        (["letters", "list", "--limit", "0"], "--limit"),
        (["letters", "list", "--limit", "many"], "'many' is not a valid whole number"),
        (["letters", "list", "--store", ""], "an empty text is not a store's URL"),
        (["letters", "list", "extra"], "extra"),
        (["letters", "list", "-q", "--json"], "exclude"),
        (["letters", "show"], "ID"),
        (["letters", "replay", "abcd"], "--reason"),
        (["letters", "replay", "--reason", "x"], "--where"),
        (["letters", "replay", "abcd", "--where", "queue:x", "--reason", "x"], "--where"),
        (["letters", "replay", "--where", " ", "--reason", "x"], "--all"),
        (["letters", "replay", "abcd", "--reason", "  "], "reason"),
        (["letters", "replay", "abcd", "--reason", "x", "--delay", "soon"], "--delay"),
        (["queue", "set", "q", "--reason", "x"], "say what to set"),
        (["queue", "set", "q", "--max-running", "3"], "--reason"),
        (["queue", "set", "q", "--max-running", "0", "--reason", "x"], "--max-running"),
        (["queue", "set", "q", "--max-running", "many", "--reason", "x"], "none for no limit"),
        (["queue", "set", "q", "--max-per-key", "-1", "--reason", "x"], "--max-per-key"),
        (["queue", "set", "q", "--rate", "fast", "--reason", "x"], "--rate: 'fast' is not a rate"),
        (["queue", "set", "q", "--capacity", "1.5", "--reason", "x"], "--capacity"),
        (["queue", "set", "q", "--order", "blok", "--reason", "x"], "did you mean 'block'?"),
        (["queue", "set", "q", "--order", "none", "--reason", "x"], "a queue always has one"),
        (["queue", "set", "q", "--keep", "long", "--reason", "x"], "--keep"),
        (["queue", "set", "q", "--retry-share", "150%", "--reason", "x"], "--retry-share"),
        (["queue", "set", "q", "--retry-share", "some", "--reason", "x"], "30%"),
        (["queue", "set", "q", "--gate", "a b", "--reason", "x"], "--gate"),
        (["queue", "set", "q", "--rate", "1/s", "--reason", " "], "reason"),
        (["queue", "pause", "q"], "--reason"),
        (["queue", "resume", "q", "--reason", " "], "reason"),
        (["item", "cancel", "--reason", "x"], "ID"),
        (["item", "cancel", "abcd"], "--reason"),
        (["letters", "skip", "abcd"], "--reason"),
        (["letters", "skip", "--reason", "x"], "--where"),
        (["route", "set", "r", "--reason", "x"], "--capacity"),
        (["route", "set", "r", "--capacity", "0", "--reason", "x"], "none for no limit"),
        (["gate", "open", "g"], "--reason"),
        (["schedule", "pause", "s"], "--reason"),
        (["worker", "run", "tasks:app", "--grace", "-1s"], "--grace"),
        (["worker", "run", "tasks:app", "--queues", " , "], "--queues"),
        (["worker", "run", "tasks:app", "--store", "memory:"], "--store"),
        (["queue", "list", "--json", "-q"], "exclude each other"),
        (["queue", "list", "--fields", "queue", "-q"], "exclude each other"),
        (["queue", "list", "--fields", ","], "--fields"),
        (["queue", "list", "--watch=soon"], "(use a number of seconds, or 200ms, 30s,"),
        (["queue", "list", "--watch=0s"], "--watch: 0s is too often (use 200ms or more)"),
        (["queue", "push", "q", "{"], "PAYLOAD: it is not JSON: line 1 column 2"),
        (["queue", "push", "q", "hello"], """a text needs quotes: '"hello"'"""),
        (["queue", "push", "q", "3", "--var", "a=1"], "--var: it can only be added to an object"),
        (["queue", "push", "q", "--var", "=1"], "--var: '=1' names no field"),
        (["queue", "push", "q", "--var", "a:=x"], "--var a:: it is not JSON"),
        (["queue", "push", "q", "--in", "5m", "--at", "2027-01-01"], "say --in or --at, not both"),
        (["queue", "push", "q", "--in", "soon"], "--in"),
        (["queue", "push", "q", "--at", "noon"], "--at: 'noon' is not a time"),
        (["queue", "push", "q", "--dedupe-window", "1h"], "--dedupe-window says nothing without --dedupe"),
        (["queue", "push", "q", "1", "--lines"], "--lines reads stdin"),
        (["queue", "push", "q", "--lines", "--id", "x"], "--lines are many"),
        (["queue", "prune", "--reason", "x"], "name queues, or say --all"),
        (["queue", "prune", "q", "--all", "--reason", "x"], "name queues, or say --all"),
        (["queue", "prune", "q", "--what", "dead", "--reason", "x"], "'dead' is none of done, cancelled, trash"),
        (["queue", "prune", "q"], "--reason"),
        (["queue", "retry", "q"], "--all-dead"),
        (["queue", "retry", "q", "abcd", "--all-dead"], "--all-dead"),
        (["queue", "drop", "q", "--reason", "x"], "ID"),
        (["queue", "drop", "q", "abcd"], "--reason"),
        (["item", "list", "--where", "stat:x", "--json"], "stat"),
        (["item", "list", "--since", "never"], "--since"),
        (["item", "wait", "abcd", "--timeout", "soon"], "--timeout"),
        (["item", "explain", "abcd", "--app", "nowhere"], "write module:variable"),
        (["gate", "remove", "g"], "--reason"),
        (["top"], "it needs a terminal"),
        (["top", "--every", "now"], "--every"),
        (["health", "--oldest", "old"], "--oldest"),
        (["policy", "explain"], "--error, --status or --text"),
        (["policy", "explain", "--error", "a b"], "--error: 'a b' is not a type"),
        (["policy", "simulate", "default", "--base", "1s"], "--base"),
        (["policy", "simulate", "never", "--base", "1s"], "--base: never has none"),
        (["policy", "simulate", "linear", "--base", "quick"], "base"),
        (["completion", "csh"], "bash, zsh, fish, powershell"),
        (["help", "filtres"], "did you mean 'filters'?"),
        (["help", "queue", "pus"], "did you mean 'push'?"),
        (["init", "--store", "mysql://x"], "unknown scheme"),
        (["status", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["db", "chek"], "did you mean 'check'?"),
        (["db", "backup"], "FILE"),
        (["db", "status", "--store", "memory:"], "empty in every new process"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_with_the_fix(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, *args)
    assert (told.code, told.out) == (Exit.USAGE, "")
    plain = told.err if "--json" not in args else json.loads(told.err)["error"]["message"]
    assert said in plain
    assert told.err.count("\n") == 1


def test_errors_as_json_have_code_message_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "letters", "list", "--json", "--where", "qeue:x")
    assert (told.code, told.out) == (Exit.USAGE, "")
    error = json.loads(told.err)["error"]
    assert error["code"] == "bad_filter"
    assert "column 1" in error["message"]
    assert "did you mean queue?" in error["hint"]


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


ENDS = {
    errors.ConfigError: Exit.USAGE,
    errors.NotFound: Exit.NOT_FOUND,
    errors.UnknownQueue: Exit.NOT_FOUND,
    errors.Conflict: Exit.CONFLICT,
    errors.LeaseLost: Exit.CONFLICT,
    errors.StoreError: Exit.STORE,
    errors.WaitTimeout: Exit.STILL_GOING,
    exits.Refused: Exit.REFUSED,
    exits.NotAllowed: Exit.NOT_ALLOWED,
}


@pytest.mark.parametrize("door", ["redrive.mailboxes", "redrive.receipts", "redrive.webhooks"])
def test_every_error_has_its_exit_code(door: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the engine and of a door."""
    importlib.import_module(door)
    for kind in subclasses(errors.RedriveError):
        error = kind.__new__(kind)
        error.message, error.hint = "it broke", "mend it"  # type: ignore[attr-defined]  # whatever they take
        error.text, error.column, error.shown = "x", 1, ""  # type: ignore[attr-defined]
        expected = next((code for base, code in ENDS.items() if issubclass(kind, base)), Exit.FAILED)
        assert tell(error, Talk(debug=False)) == expected, kind
        assert "redrive: it broke (mend it)" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(KeyboardInterrupt(), Talk(debug=False)) == 130
    assert tell(click.Abort(), Talk(debug=False)) == 130


@pytest.mark.parametrize("debug", [True, False])
def test_our_own_bug_is_one_line_unless_somebody_looks(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(root, "_facts", lambda: 1 / 0)
    monkeypatch.setenv("REDRIVE_DEBUG", "1" if debug else "")
    told = here(capsys, "version")
    assert told.code == Exit.FAILED
    assert "ZeroDivisionError" in told.err
    assert ("Traceback" in told.err) is debug


def test_v_shows_the_traceback_of_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = here(capsys, "status", "-v")
    assert told.code == Exit.STORE
    assert "Traceback" in told.err
