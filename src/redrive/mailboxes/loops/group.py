"""Several loops of mailboxes in one process: each in a thread, with a watchdog, health probes and one shutdown.

LoopGroup(loops=[main_loop, eval_loop, dlq_consumer], health_port=8080).run()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redrive.blocking.loops.group import LoopSupervisor, Runnable
from redrive.core.validation import check_count, check_type
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.metrics import default_metrics
from redrive.mailboxes.validation import check_times
from redrive.observe.endpoint import DEGRADED, HEALTHY, Report
from redrive.observe.metrics import Asked, AskedInThread, ask_all


class LoopGroup(LoopSupervisor):
    """Runs until SIGTERM, SIGINT or `trigger_shutdown`, or until no loop runs any more.

    `dead_letters` are mailboxes whose depth /health/ready reports, besides those of the loops themselves: degraded from
    `dlq_threshold` on. All other options are those of LoopSupervisor.
    """

    def __init__(
        self,
        loops: Sequence[Runnable],
        *,
        dead_letters: Iterable[Mailbox[Any, Any]] = (),
        dlq_threshold: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(loops, metrics=[default_metrics()], **options)
        self._dlq_threshold = check_count(dlq_threshold, field="dlq_threshold")
        self._depths = _depths(loops, dead_letters)

    def run(
        self, *, install_signals: bool = True, visibility_timeout: float = 1800, wait_time_seconds: float = 30
    ) -> None:
        """Run all loops, and return when they have stopped or the shutdown timeout is over."""
        check_times(visibility_timeout, wait_time_seconds)
        if self.threshold is not None and wait_time_seconds >= self.threshold:
            message = f"{wait_time_seconds:g} s without a beat reach the watchdog's threshold of {self.threshold:g} s"
            raise InvalidParameterError(message, field="wait_time_seconds", hint="make it less than watchdog_threshold")
        options = {"visibility_timeout": visibility_timeout, "wait_time_seconds": wait_time_seconds}
        self.supervise(options, install_signals=install_signals)

    def health(self) -> Report:
        """The answer of /health/ready: the loops, the depth of the dead letters, and the status of both."""
        report = super().health()
        report["dlq"] = depth_reports(self._depths, self._dlq_threshold)
        if report["status"] == HEALTHY and any(found["status"] != HEALTHY for found in report["dlq"]):
            report["status"] = DEGRADED
        return report


def _depths(loops: Sequence[Runnable], more: Iterable[Mailbox[Any, Any]]) -> dict[str, AskedInThread[int]]:
    """By name: each mailbox once, though a loop fills it and a consumer empties it."""
    check_type(more, Iterable, field="dead_letters", hint="give a list of mailboxes")
    more = tuple(more)
    for each in more:
        check_type(each, Mailbox, field="dead_letters", hint="use open_mailbox")
    own = [mailbox for loop in loops for mailbox in getattr(loop, "dead_letters", ())]
    return {mailbox.name: AskedInThread(mailbox.approximate_count) for mailbox in (*own, *more)}


def dlq_health(mailbox: Mailbox[Any, Any], threshold: int = 100) -> Report:
    """`{"status": "healthy", "dlq": {"name": …, "depth": …, "threshold": …}}`; degraded from `threshold` on.

    Never raises: a store that does not answer is degraded, and `error` says why.
    """
    check_type(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
    depths = {mailbox.name: AskedInThread(mailbox.approximate_count)}
    (found,) = depth_reports(depths, check_count(threshold, field="threshold"))
    return {"status": found.pop("status"), "dlq": found}


def depth_reports(depths: Mapping[str, Asked[int]], threshold: int) -> list[Report]:
    """`depths` by name of the mailbox."""
    reports: list[Report] = []
    for name, known in zip(depths, ask_all(list(depths.values())), strict=True):
        fine = not known.error and known.value is not None and known.value < threshold
        report = {"status": HEALTHY if fine else DEGRADED, "name": name, "depth": known.value, "threshold": threshold}
        reports.append(report | ({"error": known.error} if known.error else {}))
    return reports
