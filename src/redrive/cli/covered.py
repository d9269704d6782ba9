"""Payloads as they may be shown: indented, and without their secrets."""

from __future__ import annotations

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
        # The writer goes as deep as the reader does; Python's own does not.
        text = msgspec.json.encode(covered_value(payload))
        return (text if indent is None else msgspec.json.format(text, indent=indent)).decode(), "JSON"
    except (ValueError, RecursionError):
        pass
    try:
        return redact_text(payload.decode()), "text"
    except UnicodeDecodeError:
        return redact_text(repr(payload)), "bytes"
