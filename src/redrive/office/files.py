"""Files that are complete or absent (temporary name, sync to disk, rename), and JSON arrays, read also if damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from redrive.errors import ConfigError, Conflict
from redrive.stores.aside import in_thread

_GAP = re.compile(r"[\s,]*")


def irregular(path: Path) -> str:
    """What there is in place of a regular file, links followed; "" for a regular file, or none."""
    if path.is_file() or not path.exists():
        return ""
    return "a directory" if path.is_dir() else "not a regular file"


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """As `complete_file`. Raises ConfigError if it cannot be a file, Conflict for one that exists, unless `force`."""
    kind = irregular(path)
    if kind:
        raise ConfigError(f"{path} is {kind}", field="FILE", hint="name a file")
    if not path.parent.is_dir():
        hint = "make the folder first, or name another place"
        raise ConfigError(f"{path} cannot be written: there is no such folder", field="FILE", hint=hint)
    try:
        with complete_file(path, force=force) as out:
            yield out
    except FileExistsError:
        raise Conflict(f"there is a file {path} already", hint="use another name, or --force") from None


@contextmanager
def complete_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """The file exists when the block has ended; if it raises, nothing is left. Raises FileExistsError for a file that
    exists, unless `force`, which replaces it and keeps its mode.
    """
    if not force and path.exists():
        raise FileExistsError
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            if path.exists():
                os.fchmod(out.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield out
            out.flush()
            os.fsync(out.fileno())
        if not force:
            # A link fails if the name was taken meanwhile; some file systems have no links.
            try:
                os.link(name, path)
            except FileExistsError:
                raise
            except OSError:
                force = True
        if force:
            Path(name).replace(path)
    finally:
        with suppress(OSError):
            Path(name).unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@in_thread
def replace_file(path: Path, data: bytes) -> None:
    """Replace the file, or the one that a link leads to; its folder is made. Raises OSError.

    What exists and is not a regular file is kept: OSError too.
    """
    target = path.resolve()
    kind = irregular(target)
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    with complete_file(target, force=True) as out:
        out.write(data)


@in_thread
def set_aside(path: Path, digest: str) -> Path | None:
    """Copy a damaged file beside itself, under a name made of its contents; None if that fails."""
    copy = path.with_name(f"{path.name}.damaged-{digest[:8]}")
    try:
        if not copy.exists():
            with complete_file(copy) as out:
                out.write(path.read_bytes())
    except OSError:
        return None
    return copy


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
