"""Saved views without `await`."""

from __future__ import annotations

from redrive.blocking._bridge import Bridge
from redrive.office import views as office
from redrive.office.views import View


class Views:
    def __init__(self, bridge: Bridge, views: office.Views) -> None:
        self._bridge = bridge
        self._views = views

    def save(self, name: str, filter: str, *, replace: bool = False) -> View:
        """Keep a filter under a name. Conflict if the name has another filter, unless it is to be replaced."""
        return self._bridge.call(self._views.save, name, filter, replace=replace)

    def list(self) -> tuple[View, ...]:
        """All of them, by name."""
        return self._bridge.call(self._views.list)

    def get(self, name: str) -> View:
        """Raises NotFound."""
        return self._bridge.call(self._views.get, name)

    def remove(self, name: str) -> None:
        """The letters it showed stay as they are. Raises NotFound."""
        self._bridge.call(self._views.remove, name)
