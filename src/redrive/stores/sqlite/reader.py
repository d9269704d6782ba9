"""Reads in a thread of their own, each in a short transaction, so that no reader keeps the log from being cut."""

from __future__ import annotations

from typing import Any

from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.connect import Settings, open_reader
from redrive.stores.sqlite.lane import Job, Lane, deliver
from redrive.stores.sqlite.tx import Tx


class Reader(Lane):
    def __init__(self, settings: Settings, time: StoreTime) -> None:
        super().__init__("redrive-sqlite-reader", settings, time)

    def connect(self) -> Connection:
        return open_reader(self.settings)

    def serve(self, connection: Connection, first: Job[Any]) -> Connection:
        if not first.claim():
            return connection
        try:
            connection.execute("begin")
            first.result = first.work(Tx(connection, self.time.now()))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            first.error = faults.translate(error, self.settings.path)
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except self.settings.binding.errors as error:
            first.error = faults.translate(error, self.settings.path)
        deliver([first])
        return connection
