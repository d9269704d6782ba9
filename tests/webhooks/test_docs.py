"""Everything that users can meet is on the page, its numbers are those of the code, and its examples run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import redrive.webhooks
from redrive.core.durations import parse as parse_duration
from redrive.core.item import OUTPUT_LIMIT
from redrive.core.sizes import parse as parse_size
from redrive.engine import remote
from redrive.engine.keeper import ASK_EVERY
from redrive.net.server_protocol import TOO_LARGE
from redrive.net.verification import PROVIDERS, Verification
from redrive.webhooks import (
    Endpoint,
    EndpointStats,
    Maintained,
    Notice,
    Relay,
    Webhook,
    WebhookHub,
    hub,
    ingest,
    tokens,
)
from redrive.webhooks.endpoint_options import LONGEST, EndpointOptions
from redrive.webhooks.endpoints import Endpoints
from redrive.webhooks.model import DAY, STATUSES, next_retry_delay
from redrive.webhooks.relay import LEASE, MAX_BODY, Webhooks
from tests.cli.test_examples import example
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"\w+", PAGE))
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
INNER = {"self", "url", "sealed", "secrets", "pauses", "cached", "subscribed", "verification", "restore_settings"}
"""Fields and methods that are for redrive itself."""


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith(("_", "note_"))} - INNER


@pytest.mark.parametrize(
    "names",
    [
        set(redrive.webhooks.__all__),
        set(EndpointOptions.__annotations__),
        set(PROVIDERS),
        set(STATUSES),
        set(inspect.signature(Relay).parameters),
        set(inspect.signature(WebhookHub).parameters) - {"clock", "concurrency", "name"},
        public(Relay) - {"max_body", "delivery", "receive", "open", "close"},
        public(Endpoints),
        public(Webhooks),
        *(set(kind.__struct_fields__) - INNER for kind in (Webhook, EndpointStats, Endpoint, Maintained, Notice)),
        set(Verification.__struct_fields__) - INNER,
    ],
    ids=lambda names: ",".join(sorted(names))[:40],
)
def test_every_name_is_on_the_page(names: set[str]) -> None:
    assert names
    assert names - WORDS == set()


def test_every_status_is_on_the_page_as_the_filter_that_it_is() -> None:
    for status, filter_text in STATUSES.items():
        assert any(row.startswith(f"| `{status}` |") and f"`{filter_text}`" in row for row in ROWS), status


def test_the_schedule_on_the_page_is_that_of_the_code() -> None:
    (row,) = [row for row in ROWS if row.startswith("| seconds |")]
    assert row == f"| seconds | {' | '.join(f'{next_retry_delay(number):,}' for number in range(13))} |"


def test_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"`max_body` ({MAX_BODY[:-3]} MiB)" in PAGE
    assert f"within {ingest.READ_WITHIN:g} seconds" in PAGE
    assert f"more than {ingest.IN_MEMORY // parse_size('1MiB', field='')} MiB of bodies" in PAGE
    assert f"in all up to {OUTPUT_LIMIT // 1024} KiB" in PAGE
    assert f"| `timeout` | {Endpoint(id='e').timeout // 1000} s |" in PAGE
    assert f"at most {LONGEST // 1000} s" in PAGE
    assert (Endpoint(id="e").max_age, Endpoint(id="e").disable_after) == (7 * DAY, 14 * DAY)
    assert "`max_age` (7 days)" in PAGE
    assert "| `disable_after` | 14 d |" in PAGE


def test_h20_a_request_of_any_timeout_is_over_before_another_worker_may_send() -> None:
    """Of a worker whose store does not answer, and of a hub that is gone."""
    extended = ASK_EVERY * 3 // 2
    assert 30_000 < Endpoint(id="e").timeout < LONGEST <= parse_duration(LEASE) - extended
    assert hub.LEASE - extended >= LONGEST + remote.TRAVEL


def test_every_status_of_ingest_and_every_code_of_an_edge_has_a_row() -> None:
    source = inspect.getsource(ingest)
    statuses = {"200", "405", TOO_LARGE[9:12].decode(), *re.findall(r"HTTPException\((\d{3})", source)}
    section = PAGE.partition("## Ingest")[2].partition("\n## ")[0]
    assert statuses == set(re.findall(r"^\| (\d{3}) \|", section, re.MULTILINE))
    codes = re.findall(r'HubRefused\(\s*"(\w+)"', inspect.getsource(tokens) + inspect.getsource(redrive.webhooks.hub))
    assert len(set(codes)) > 5
    assert [code for code in codes if f"`{code}`" not in PAGE] == []


@pytest.mark.slow
def test_the_relay_of_the_examples_delivers_in_order_after_a_failure(tmp_path: Path) -> None:
    told = example("webhook_relay.py", tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "GitHub sent issue 1 and was answered 200",
        "GitHub sent issue 2 and was answered 200",
        "GitHub sent issue 3 and was answered 200",
        "GitHub sent issue 3 and was answered 200, known already",
        "your service answers 503 to issue 1, attempt 1",
        "your service answers 200 to issue 1, attempt 2",
        "your service answers 200 to issue 2, attempt 1",
        "your service answers 200 to issue 3, attempt 1",
        "3 delivered, 0 pending, 0 failed",
    ]


@pytest.mark.slow
def test_the_hub_of_the_examples_delivers_what_the_edge_received(tmp_path: Path) -> None:
    told = example("edge_and_hub.py", tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "received while no hub is connected: pending",
        "the service in the private network got: paid",
        "the edge has it as: delivered after 1 attempt",
    ]
