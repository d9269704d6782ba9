"""What a group can run: main loops, evaluations, consumers of dead letters, automatic replay; or one of your own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from redrive.mailboxes.life.heartbeat import Heartbeat


@runtime_checkable
class Runnable(Protocol):
    """It may also have `dead_letters`, the mailboxes whose depth its group tells the health probes."""

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = ...,
        wait_time_seconds: float = ...,
    ) -> None:
        """Work in this thread until told to stop, or until there is nothing more to come."""

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Tell it to stop, and wait; True if it has stopped by then. One that does not run has stopped."""

    @property
    def running(self) -> bool: ...

    @property
    def heartbeat(self) -> Heartbeat:
        """Beaten at least once in each round, so that others see that it is not stuck."""
