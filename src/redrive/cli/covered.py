"""Payloads, and output of attempts, as they may be shown: without their secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from redrive.cli.output import clean
from redrive.core.redact import redact, redact_text

Kind = Literal["JSON", "text", "bytes"]
OUTPUT_LINES = 20
OUTPUT_LENGTH = 4000


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


def covered_text(data: bytes) -> str:
    """As it is, unless something of it is covered. Raises UnicodeDecodeError."""
    text = data.decode()
    try:
        value = msgspec.json.decode(data)
        shown = redact(value)
        return text if shown == value else msgspec.json.encode(shown).decode()
    except (msgspec.MsgspecError, RecursionError):
        return redact_text(text)


def output_lines(output: bytes, item_id: str) -> Iterator[str]:
    """The beginning of an attempt's output, harmless to a terminal; nothing where there is none."""
    if not output:
        return
    yield f"output, {len(output):,} bytes"
    text = covered_payload(output)[0].replace("\r\n", "\n").removesuffix("\n")
    lines = text[:OUTPUT_LENGTH].split("\n")
    for line in lines[:OUTPUT_LINES]:
        yield f"  {clean(line)}"
    if len(lines) > OUTPUT_LINES or len(text) > OUTPUT_LENGTH:
        yield f"  … cut; redrive item attempts {clean(item_id)} --json has all of it"
