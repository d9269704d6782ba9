"""What redrive itself logged in a test. Others, such as asyncio, may speak at any time of what an earlier test left."""

from __future__ import annotations

import logging

import pytest


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.partition(".")[0] == "redrive"]
