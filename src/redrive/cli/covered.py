"""Payloads as they may be shown: indented, and without their secrets."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from redrive.core.redact import redact, redact_text

Kind = Literal["JSON", "text", "bytes"]


def covered_value(payload: bytes) -> Any:
    """The JSON value without its secrets. Raises ValueError if it is none."""
    try:
        return redact(msgspec.json.decode(payload))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def covered_payload(payload: bytes, indent: int | None = 2) -> tuple[str, Kind]:
    try:
        return json.dumps(covered_value(payload), ensure_ascii=False, indent=indent), "JSON"
    except (ValueError, RecursionError):
        pass
    try:
        return redact_text(payload.decode()), "text"
    except UnicodeDecodeError:
        return redact_text(repr(payload)), "bytes"
