"""Reads in a thread of their own, each in a short transaction, so that no reader keeps the log from being cut."""

from __future__ import annotations

import sqlite3
from typing import Any

from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.connect import Settings, open_reader
from redrive.stores.sqlite.lane import Job, Lane, deliver
from redrive.stores.sqlite.tx import Tx


class Reader(Lane):
    def __init__(self, settings: Settings, time: StoreTime) -> None:
        super().__init__("redrive-sqlite-reader", settings, time)

    def connect(self) -> sqlite3.Connection:
        return open_reader(self.settings)

    def serve(self, connection: sqlite3.Connection, first: Job[Any]) -> sqlite3.Connection:
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
        except sqlite3.Error as error:
            first.error = faults.translate(error, self.settings.path)
        deliver([first])
        return connection
