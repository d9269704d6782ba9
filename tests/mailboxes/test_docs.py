"""What the page says about names, options, reasons, metrics and log lines is what the code has; its example runs."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import redrive.mailboxes
from redrive.engine import outbox
from redrive.mailboxes import (
    AutoReplay,
    Budget,
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    EvalLoop,
    LeaseExtenderConfig,
    LoopGroup,
    MailboxMetrics,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    RedisMailbox,
    Replayed,
    Replayer,
    ReplayRule,
    RunContext,
    StoreMailbox,
    agents,
    errors,
    logs,
    open_mailbox,
    testing,
)
from redrive.mailboxes.boxes import mailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.letters import store_dead_letter
from redrive.mailboxes.loops import policy, worker
from redrive.stores import damage
from tests.cli.test_examples import example
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "mailboxes.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
CALLS = (
    open_mailbox,
    RedisMailbox,
    StoreMailbox.send,
    MainLoop,
    MainLoop.run,
    EvalLoop,
    LoopGroup,
    DLQConsumer,
    Replayer,
    Replayer.one,
    Replayer.matching,
    AutoReplay,
    MailboxMetrics,
)
UNTOLD = {
    "self",
    "options",  # those of all mailboxes
    "kill",  # for tests of the group itself
    "which",  # told as a message or an id
    "name",
}
VALUES = (
    Budget,
    DeadLetter,
    DLQPolicy,
    LeaseExtenderConfig,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Replayed,
    ReplayRule,
    RunContext,
)


def is_told(name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", PAGE) is not None


def untold(names: Any) -> list[str]:
    return [name for name in names if not is_told(name)]


def test_every_public_name_is_on_the_page() -> None:
    names = [*redrive.mailboxes.__all__, *agents.__all__]
    assert len(names) > 70
    assert untold(names) == []
    doubles = [
        name for name, kind in vars(testing).items() if isinstance(kind, type) and kind.__module__ == testing.__name__
    ]
    assert untold(name for name in doubles if name.endswith("Mailbox")) == []


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_every_option_is_on_the_page(call: Any) -> None:
    names = set(inspect.signature(call).parameters) - UNTOLD
    assert names
    assert untold(names) == []


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_every_field_is_on_the_page(value: Any) -> None:
    assert untold({field.name for field in fields(value)} - UNTOLD) == []


@pytest.mark.parametrize("kind", [StoreMailbox, StoreMessage], ids=lambda kind: kind.__name__)
def test_every_method_is_on_the_page(kind: type) -> None:
    ours = {
        "bind",
        "mark_dead_letters",
        "shared",
        "call",
        "of",
        "holds_letters",
        "check_open",
        "prepare",
        "put",
        "seal",
    }
    ours |= {"resolve", "reply_address", "shares", "envelope", "done", "check_held", "settle", "settlement", "write"}
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_") and name not in ours]
    assert len(names) > 5
    assert untold(names) == []


def test_every_reason_for_a_letter_is_explained() -> None:
    source = "\n".join(inspect.getsource(module) for module in (policy, worker, mailbox, outbox))
    reasons = set(re.findall(r'DeadLetterReason\("(\w+)"', source))
    reasons |= set(re.findall(r'letter_reason = "(\w+)"', source))
    reasons |= set(re.findall(r'(?:Dead|Expired)\(failure, "(\w+)"\)', source))
    reasons |= set(re.findall(r'return "(\w+)"(?: if| *$)', inspect.getsource(policy), re.MULTILINE))
    reasons |= set(re.findall(r'else "(\w+)"$', inspect.getsource(policy), re.MULTILINE))
    reasons.add(store_dead_letter.REASON)
    reasons |= set(re.findall(r'return "(\w+)"$', inspect.getsource(damage), re.MULTILINE))
    assert {
        "max_attempts",
        "rule",
        "max_age",
        "policy",
        "no_retry",
        "deadline",
        "budget",
        "expired",
        "undeliverable",
    } <= reasons
    assert "damaged" in reasons
    explained = {word for row in ROWS for word in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert reasons <= explained


def test_what_is_said_of_lost_workers_is_so() -> None:
    (kind,) = re.findall(r'plain_failure\("([\w.]+)"', inspect.getsource(policy))
    assert is_told(kind)


@pytest.mark.parametrize("name", ["RETRIABLE_ERRORS", "NON_RETRIABLE_ERRORS", "AMBIGUOUS_ERRORS"])
def test_the_sets_of_errors_are_those_of_the_page(name: str) -> None:
    (row,) = [row for row in ROWS if row.startswith(f"| `{name}` |")]
    assert set(re.findall(r"`(\w+Error|\w+Violation|\w+Required)`", row)) == {
        kind.__name__ for kind in getattr(errors, name)
    }


def test_every_metric_is_on_the_page() -> None:
    metrics, registry = MailboxMetrics(), CollectorRegistry()
    for count in (metrics.sent, metrics.replayed, metrics.discarded, metrics.expired, metrics.refused):
        count("requests", "builtins.ValueError")
    metrics.processed("requests", "builtins.ValueError", age_seconds=1, duration_ms=1)
    metrics.register(registry)
    lines = generate_latest(registry).decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert len(names) == 9
    for name in names:
        assert any(row.startswith(f"| `{name}{{") for row in ROWS), name


LINES = (
    "Message dead-lettered",
    "Processing dead letter",
    "DLQ handler failed",
    "Replayed dead letter",
    "Dead letter mailbox full",
    "Mailbox unreachable",
)


@pytest.mark.parametrize("text", LINES)
def test_log_lines_have_the_fields_of_the_page(text: str) -> None:
    folder = Path(logs.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [each for each in calls if any(isinstance(arg, ast.Constant) and arg.value == text for arg in each.args)]
    if getattr(call.func, "attr", "") == "failed":
        (call,) = [each for each in calls if each.args and getattr(each.args[-1], "id", "") == "text" and is_log(each)]
    (row,) = [row for row in ROWS if f"`{text}`" in row]
    told = set(re.findall(r"`(\w+)`", row.split("|")[3]))
    assert told == {keyword.arg for keyword in call.keywords}


def is_log(call: ast.Call) -> bool:
    return getattr(call.func, "id", "") == "log"


@pytest.mark.slow
def test_the_example_loses_nothing(tmp_path: Path) -> None:
    told = example("mailboxes.py", tmp_path)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        "at night: 1 answered, 3 given up",
        "dead letters in the morning: 2",
        "replayed: 2 answered, 0 given up",
        "left: 0 requests, 0 dead letters",
    ]
    assert sorted(line for line in lines if line.startswith("  ")) == [
        "  alert: how deep is the sea? (3 attempts, overloaded)",
        "  alert: how do I pick a lock? (1 attempts, we do not speak of locks)",
        "  alert: what swims in the sea? (3 attempts, overloaded)",
    ]
