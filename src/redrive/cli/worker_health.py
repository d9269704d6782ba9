"""The HTTP endpoint of `redrive worker run --health-port`, for a worker process and for the supervisor of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrive.cli.worker_group import Group
from redrive.cli.worker_logs import logger
from redrive.observe.endpoint import DEGRADED, HEALTHY, UNHEALTHY, HealthServer, Report
from redrive.observe.metrics import Family, Metrics, Sample


@contextmanager
def served(readiness: Callable[[], Report], metrics: Metrics, host: str, port: int) -> Iterator[None]:
    """For as long as the block runs."""
    server = HealthServer(readiness, host=host, port=port, metrics=[metrics])
    server.start()
    logger.info("probes and metrics on port %s of %s", server.port, host)
    try:
        yield
    finally:
        server.stop()


class GroupHealth(Metrics):
    """What a supervisor knows of its worker processes. What happens to items is counted by each process for itself."""

    families = (
        Family("gauge", "worker_processes", "Worker processes of this supervisor that are ready."),
        Family("counter", "worker_process_deaths", "Worker processes that died and were replaced."),
    )

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group

    def samples(self) -> list[Sample]:
        return [
            Sample("worker_processes", (), self._group.ready),
            Sample("worker_process_deaths", (), self._group.died),
        ]

    def report(self) -> Report:
        """The answer of /health/ready: degraded while some processes are missing, unhealthy without any."""
        ready, wanted = self._group.ready, self._group.processes
        status = HEALTHY if ready >= wanted else DEGRADED if ready else UNHEALTHY
        return {"status": UNHEALTHY if self._group.is_ending() else status, "processes": wanted, "ready": ready}
