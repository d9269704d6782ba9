"""Replays in the background without `await`."""

from __future__ import annotations

from redrive.blocking._bridge import Bridge
from redrive.core.acts import Amended
from redrive.core.rates import RateText
from redrive.engine.replays import BackgroundReplay
from redrive.office import replays as office


class Replays:
    def __init__(self, bridge: Bridge, replays: office.Replays) -> None:
        self._bridge = bridge
        self._replays = replays

    def list(self) -> tuple[BackgroundReplay, ...]:
        """Active replays, then the last 100 ended ones; each latest start first."""
        return self._bridge.call(self._replays.list)

    def get(self, id: str) -> BackgroundReplay:
        """Raises NotFound."""
        return self._bridge.call(self._replays.get, id)

    def pause(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """Stop sending its letters, except for the window of 200 ms that is already on its way."""
        return self._bridge.call(self._replays.pause, id, reason=reason, request_id=request_id)

    def resume(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """Continue after a pause."""
        return self._bridge.call(self._replays.resume, id, reason=reason, request_id=request_id)

    def set_rate(
        self, id: str, rate: RateText | None, *, reason: str, request_id: str | None = None
    ) -> BackgroundReplay:
        """Set another rate, such as "50/s", from the next window on; None for no limit."""
        return self._bridge.call(self._replays.set_rate, id, rate, reason=reason, request_id=request_id)

    def cancel(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """End it. The letters that were not sent are free for other acts."""
        return self._bridge.call(self._replays.cancel, id, reason=reason, request_id=request_id)

    def undo(self, id: str, *, reason: str, request_id: str | None = None) -> Amended:
        """Cancel it, and recall the items that it has sent and no worker has leased since. With `transform` the letters
        have ended: the new items that no worker has leased become letters, with the reason `expired`.
        """
        return self._bridge.call(self._replays.undo, id, reason=reason, request_id=request_id)
