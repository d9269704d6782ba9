"""The lifecycle of a blocking app: made, opened, closed."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from msgspec import UNSET, UnsetType

from redrive.blocking._bridge import App, Bridge
from redrive.core.sizes import Size
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from redrive.stores.keyring import Keyring


class Lifecycle:
    def __init__(
        self,
        store: str | Store | UnsetType = UNSET,
        *,
        max_payload: Size | None = None,
        traceback: bool = True,
        log: bool = True,
        actor: str | None = None,
        clock: Clock | None = None,
        release: str | None = None,
        encryption: Keyring | None = None,
    ) -> None:
        self._app = App(
            store,
            max_payload=max_payload,
            traceback=traceback,
            log=log,
            actor=actor,
            clock=clock,
            release=release,
            encryption=encryption,
        )
        self._bridge = Bridge(self._app)
        self.events: Events = self._app.events

    def open(self) -> Self:
        self._bridge.call(self._app.open)
        return self

    def close(self) -> None:
        """Stops workers that still run, then lets go of the store. May be called twice."""
        self._bridge.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
