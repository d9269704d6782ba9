"""What pollers and clients log. Texts come from brokers and handlers: no secrets, and no lines but our own.

A traceback stands in the text of its record, and not in `exc_info`, where every formatter would print it as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from traceback import TracebackException

from redrive.core.redact import redact_text
from redrive.engine.evidence import TEXT_LIMIT, text_of
from redrive.observe.logs import one_line

log = logging.getLogger("redrive.receipts")

_FRAME = re.compile(r'[ |+-]*File "')


def say(level: int, text: str, *, trace: BaseException | None = None) -> None:
    """`trace`: the error whose traceback stands below the text."""
    if log.isEnabledFor(level):
        # Indented, so that nothing in there looks like the beginning of a record.
        told = [_plain(text), *(f"  {line}" for line in _lines_of(trace))]
        log.log(level, "%s", "\n".join(told), stacklevel=2)


def error_text(error: BaseException) -> str:
    """Its kind and its text, also of an error that cannot be printed."""
    kind, text = type(error).__name__, text_of(error)
    return f"{kind}: {text}" if text else kind


def _lines_of(error: BaseException | None) -> Iterator[str]:
    if error is not None:
        for part in TracebackException.from_exception(error).format():
            # A frame has a line of source below it; elsewhere a line break is one of the error's text.
            lines = part.rstrip("\n").split("\n") if _FRAME.match(part) else [part.strip("\n")]
            yield from map(_plain, lines)


def _plain(text: str) -> str:
    # Before secrets are looked for: that takes seconds for megabytes.
    short = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text):,} characters)"
    return one_line(redact_text(short))
