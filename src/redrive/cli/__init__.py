"""`redrive …`: the office and the worker on the command line. stdout is data, stderr is talk.

click is imported by the first call, not by the import: the library must not pay for its command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def run(args: Sequence[str]) -> int:
    """One command; returns its exit code. Whatever goes wrong becomes a line on stderr and a code in `exits`."""
    from redrive.cli.incoming import incoming

    with incoming():
        from redrive.cli.root import run_command

    return run_command(args)


def main() -> None:
    from redrive.cli.incoming import alone, incoming

    alone()
    with incoming():
        from redrive.cli.leaving import leave

    leave(run(sys.argv[1:]))
