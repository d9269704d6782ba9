"""Schedules without `await`."""

from __future__ import annotations

from redrive.blocking._bridge import Bridge
from redrive.office import schedules as office
from redrive.office.schedules import ScheduleView


class Schedules:
    def __init__(self, bridge: Bridge, schedules: office.Schedules) -> None:
        self._bridge = bridge
        self._schedules = schedules

    def list(self) -> tuple[ScheduleView, ...]:
        """All of them, by name."""
        return self._bridge.call(self._schedules.list)

    def get(self, name: str) -> ScheduleView:
        """Raises NotFound."""
        return self._bridge.call(self._schedules.get, name)

    def pause(self, name: str, *, reason: str, actor: str | None = None) -> ScheduleView:
        """No ticks until it is resumed; those that come meanwhile are not made up for."""
        return self._bridge.call(self._schedules.pause, name, reason=reason, actor=actor)

    def resume(self, name: str, *, reason: str, actor: str | None = None) -> ScheduleView:
        """Goes on with the next tick."""
        return self._bridge.call(self._schedules.resume, name, reason=reason, actor=actor)

    def remove(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Its items stay. One that an app still declares comes back when that app is opened."""
        self._bridge.call(self._schedules.remove, name, reason=reason, actor=actor)

    def run(self, name: str, *, reason: str, actor: str | None = None) -> str:
        """Once more, now, besides its ticks and also while it is paused. The id of the item."""
        return self._bridge.call(self._schedules.run, name, reason=reason, actor=actor)
