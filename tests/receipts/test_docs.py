"""What the page says about answers, codes, options and numbers is what the code does; and its example runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from redrive.engine.poller import JOB_TIMEOUT, LEASE_LOST, SHUTDOWN_CANCELLED
from redrive.receipts import ReceiptClient, ReceiptMetrics, WorkPoller, jobs
from redrive.receipts.answers import CODES
from redrive.receipts.metrics import alert_rules
from tests.cli.test_examples import example
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "receipts.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_every_code_stands_in_the_row_of_its_error(code: str, kind: type[Exception]) -> None:
    (row,) = [row for row in ROWS if f"`{kind.__name__}`" in row]
    assert re.search(rf"(?<![\w-]){code}(?!\w)", row)


@pytest.mark.parametrize("name", [jobs.HANDLER_ERROR, JOB_TIMEOUT, SHUTDOWN_CANCELLED, LEASE_LOST])
def test_every_way_in_which_a_job_fails_is_explained(name: str) -> None:
    assert any(row.startswith(f"| `{name}` |") for row in ROWS)


def test_every_option_is_on_the_page() -> None:
    options = {*inspect.signature(ReceiptClient).parameters, *inspect.signature(WorkPoller).parameters}
    assert options <= set(re.findall(r"\w+", PAGE))


def test_every_metric_is_on_the_page() -> None:
    metrics, registry = ReceiptMetrics(), CollectorRegistry()
    metrics.receipts["complete", "true"] += 1
    metrics.superseded["running"] += 1
    metrics.register(registry)
    lines = generate_latest(registry).decode().splitlines()
    names = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#") and "_created" not in line}
    assert len(names) == 5
    for name in names:
        assert any(row.startswith(f"| `{name}") for row in ROWS), name


def test_the_alert_on_the_page_is_ours() -> None:
    shown = PAGE.split("$ redrive receipts alerts --prefix cognigate\n")[1].split("…")[0]
    assert alert_rules("cognigate").startswith(shown)


@pytest.mark.slow
def test_the_example_loses_nothing(tmp_path: Path) -> None:
    told = example("receipts.py", tmp_path)
    assert told.returncode == 0, told.stderr
    assert [line for line in told.stdout.splitlines() if not line.startswith("  ")] == [
        "page 1, all is well: True",
        "page 3, the broker is down: False",
        "dead letters: ['page 3']",
        "page 2, the broker is back: True",
        "recovered: 1 dead letters left: 0",
        "the broker has: ['page 1', 'page 2', 'page 3']",
    ]
