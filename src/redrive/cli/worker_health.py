"""The HTTP endpoint of `redrive worker run --health-port`, for a worker process and for the supervisor of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrive.cli.worker_group import Group
from redrive.cli.worker_logs import logger
from redrive.observe.metrics import Family, Metrics, Sample


@contextmanager
def served(
    host: str, port: int | None, readiness: Callable[[], dict[str, object]], metrics: Callable[[], Metrics]
) -> Iterator[None]:
    """For as long as the block runs; nothing without a port."""
    if port is None:
        yield
        return
    from redrive.observe.endpoint import HealthServer

    server = HealthServer(readiness, host=host, port=port, metrics=[metrics()])
    server.start()
    logger.info("probes and metrics on port %s of %s", server.port, host)
    try:
        yield
    finally:
        server.stop()


class GroupHealth(Metrics):
    """What a supervisor knows of its worker processes. Items are counted by each process for itself."""

    families = (
        Family("gauge", "worker_processes", "Worker processes of this supervisor that are ready."),
        Family("counter", "worker_process_deaths", "Worker processes that died and were replaced."),
    )

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group

    def samples(self) -> list[Sample]:
        values = {"worker_processes": self._group.ready, "worker_process_deaths": self._group.died}
        return [Sample(family, (), value) for family, value in values.items()]

    def report(self) -> dict[str, object]:
        """The answer of /health/ready: degraded while some processes are missing, unhealthy without any."""
        ready, wanted = self._group.ready, self._group.processes
        status = "healthy" if ready >= wanted else "degraded"
        if not ready or self._group.is_ending():
            status = "unhealthy"
        return {"status": status, "processes": wanted, "ready": ready}
