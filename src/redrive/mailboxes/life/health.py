"""Health of dead-letter mailboxes: degraded from a threshold of open letters on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.observe.endpoint import DEGRADED, HEALTHY, Report
from redrive.observe.metrics import Asked, AskedInThread, ask_all


def dlq_health(mailbox: Mailbox[Any, Any], threshold: int = 100) -> Report:
    """`{"status": "healthy", "dlq": {"name": …, "depth": …, "threshold": …}}`; degraded from `threshold` on.

    Never raises: a store that does not answer is degraded, and `error` says why.
    """
    limits.kind(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
    depths = {mailbox.name: AskedInThread(mailbox.approximate_count)}
    (found,) = depth_reports(depths, limits.threshold(threshold, field="threshold"))
    return {"status": found.pop("status"), "dlq": found}


def depth_reports(depths: Mapping[str, Asked[int]], threshold: int) -> list[Report]:
    """`depths` by name of the mailbox."""
    reports: list[Report] = []
    for name, known in zip(depths, ask_all(list(depths.values())), strict=True):
        fine = not known.error and known.value is not None and known.value < threshold
        report = {"status": HEALTHY if fine else DEGRADED, "name": name, "depth": known.value, "threshold": threshold}
        reports.append(report | ({"error": known.error} if known.error else {}))
    return reports
