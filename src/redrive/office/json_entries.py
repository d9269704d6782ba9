"""Reads the entries of a JSON array, also of a file that is damaged or ends in the middle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

_GAP = re.compile(r"[\s,]*")


def json_entries(text: str, entry: re.Pattern[str]) -> Iterator[tuple[int, Any]]:
    """The position of each entry, and its value or the ValueError of one that cannot be read.

    `entry` matches the beginning of an entry: reading goes on there after something that cannot be read.
    """
    decoder = json.JSONDecoder(parse_constant=_reject_constant)
    at = _skip_gap(text, 0)
    if not text.startswith("[", at):
        # A crash in the middle of a write leaves an empty file.
        yield at, ValueError("the file is not a JSON array" if text[at:].strip() else "the file is empty")
        return
    at = _skip_gap(text, at + 1)
    while at < len(text) and text[at] != "]":
        end = at
        try:
            value, end = decoder.raw_decode(text, at)
            text[at:end].encode()
        except UnicodeEncodeError:
            yield at, ValueError("it is not UTF-8")
        except (ValueError, RecursionError) as error:
            yield at, ValueError(f"it cannot be read as JSON ({_reason(error)})")
            following = entry.search(text, at + 1)
            if following is None:
                return
            end = following.start()
        else:
            yield at, value
        at = _skip_gap(text, end)
    if at >= len(text):
        yield at, ValueError("the file ends before its array does")
    elif text[at + 1 :].strip():
        yield at + 1, ValueError("something follows the array")


def _skip_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _reject_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower().removesuffix(' at')} at line {error.lineno}, column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
