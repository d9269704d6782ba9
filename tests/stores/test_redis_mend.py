"""Reconciling a namespace: what is said of it while the server cannot be asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from redrive.errors import StoreUnavailable
from redrive.stores.redis.mend import Mender
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.pool import Pool
from redrive.stores.redis.wire import Wire


class Away:
    def __init__(self) -> None:
        self.pool = Pool(Options(Address("10.0.0.6")), self._greet)

    async def _greet(self, wire: Wire) -> None:
        raise AssertionError("nobody is to be connected to")

    async def run(self, script: str, args: Sequence[Any] = ()) -> Any:
        raise StoreUnavailable("the server is loading its data")


async def test_what_is_put_off_names_the_store(caplog: pytest.LogCaptureFixture) -> None:
    mender = Mender(Away())
    with caplog.at_level(logging.WARNING, logger="redrive.stores"):
        await mender.begin("run", "", 0)
    assert mender.task is not None
    mender.task.cancel()
    await asyncio.wait([mender.task])
    (said,) = [record.getMessage() for record in caplog.records if "looked through later" in record.getMessage()]
    assert said.startswith("redis://10.0.0.6:6379/0?namespace=redrive: its items are looked through later: ")
    assert "loading its data" in said
