"""How things are shown: columns for people, tabs for pipes, JSON for programs, and nothing that speaks to a terminal.

Error texts, payloads and names come from anywhere. Whatever is not printable is shown as an escape, so that no letter
can clear a screen, forge a line or turn text around.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, TextIO

import click

from redrive.errors import RedriveError

if TYPE_CHECKING:  # the library is not imported for the sake of two names
    from redrive.core.item import Instant, Millis

MISSING = "-"
CLOSED = "it is closed"


class Unwritten(RedriveError):
    """Output that does not arrive: a full disk, a closed stdout. A reader that went away is no error."""


def unwritten(error: OSError | ValueError | str, what: str = "stdout") -> Unwritten:
    why = CLOSED if isinstance(error, ValueError) else error
    why = (why.strerror or str(why)) if isinstance(why, OSError) else why
    return Unwritten(f"{what} cannot be written: {why}", hint="if it was to change something, that is done")


def clean(text: str, *, keep: str = "") -> str:
    """The text with everything escaped that is not printable, line ends included unless kept."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def say(text: str, *, keep: str = "") -> None:
    """Talk: to stderr, never among the data. Where nobody can hear it, the exit code has to do."""
    with suppress(OSError, ValueError):
        click.echo(clean(text, keep=keep), err=True)


def on_terminal() -> bool:
    """Python has no stdout at all if it was closed before."""
    out: TextIO | None = sys.stdout
    return out is not None and not out.closed and out.isatty()


def in_colour() -> bool:
    """Unless it was said otherwise: by --no-color, which the command's Talk knows, or by the environment."""
    context = click.get_current_context(silent=True)
    wanted = context is None or getattr(context.obj, "colour", True)
    return wanted and on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    return click.style(text, bold=True) if in_colour() else text


def red(text: str) -> str:
    return click.style(text, fg="red") if in_colour() else text


def write(line: str) -> None:
    out: TextIO | None = sys.stdout
    if out is None:
        raise unwritten(CLOSED)
    try:
        click.echo(line, color=in_colour())
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise unwritten(error) from error


@contextmanager
def raw_output() -> Iterator[IO[bytes]]:
    """The stdout of bytes, which have all arrived when it is left."""
    out: TextIO | None = sys.stdout
    if out is None:
        raise unwritten(CLOSED)
    try:
        out.flush()
        yield out.buffer
        out.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def width(text: str) -> int:
    """Cells on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """At most so many cells, with a mark where something is missing."""
    if width(text) <= cells:
        return text
    taken, used = [], 1
    for char in text:
        used += _cells(char)
        if used > cells:
            break
        taken.append(char)
    return "".join(taken) + "…"


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    wide: bool = False,
    below: Sequence[Iterable[str]] = (),
) -> None:
    """Aligned, under a header; the last column gives way where the terminal is too narrow, unless `wide`. Numbers stand
    right. `below`: for each row, the lines under it.
    """
    if not rows:
        return
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(width(row[at]) for row in [list(header), *cells]) for at in range(len(header))]
    right = [all(row[at].isdecimal() for row in cells) for at in range(len(header))]
    import shutil  # here, like json below: most that is shown needs neither, and --version waits for what is imported

    room = shutil.get_terminal_size().columns
    last = widths[-1] if wide else max(12, room - sum(widths[:-1]) - 2 * (len(widths) - 1))
    write(bold(_aligned(header, widths, right, last)))
    for at, row in enumerate(cells):
        write(_aligned(row, widths, right, last))
        for line in below[at] if below else ():
            write(line)


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], last: int) -> str:
    parts = []
    for at, cell in enumerate(row):
        if at == len(row) - 1:
            parts.append(cell.rjust(min(widths[at], last)) if right[at] else cut(cell, last))
        else:
            pad = " " * (widths[at] - width(cell))
            parts.append(pad + cell if right[at] else cell + pad)
    return "  ".join(parts).rstrip()


def tabbed(rows: Iterable[Sequence[str]]) -> None:
    """For pipes: no header, tab-separated, whole values. A tab inside a value is escaped like any other control."""
    for row in rows:
        write("\t".join(clean(cell) for cell in row))


def as_json(value: object, *, indent: int | None = 2) -> str:
    """JSON with every unprintable character escaped: valid for programs, harmless on a terminal."""
    import json

    lines = json.dumps(value, ensure_ascii=False, indent=indent).split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_printable, line)) for line in lines)


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    point = ord(char)
    if point < 0x10000:
        return f"\\u{point:04x}"
    point -= 0x10000
    return f"\\u{0xD800 + (point >> 10):04x}\\u{0xDC00 + (point & 0x3FF):04x}"


def write_json(value: object) -> None:
    write(as_json(value))


def iso(instant: Instant | None) -> str | None:
    if instant is None:
        return None
    try:
        at = datetime.fromtimestamp(instant / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{instant} ms"  # outside of what a calendar can say
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(millis: Millis | None) -> float | None:
    return None if millis is None else millis / 1000


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def brief(millis: Millis) -> str:
    """A duration in its one or two largest units: 45s, 1m4s, 3h, 12d."""
    from redrive.core import durations

    return durations.brief(millis)
