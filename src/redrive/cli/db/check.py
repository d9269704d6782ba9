"""`redrive db check`: is all whole, does it agree with itself, and what of it can be put right."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, upkeep_of, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, clean, on_terminal, red, say, tabbed, write, write_json
from redrive.core.verbs import Checkup, Finding

ABOUT = """Check that the database is whole and agrees with itself.

Exit 10 if something was found, 1 if not all could be looked at.

\b
Examples:
  redrive db check
  redrive db check --quick
  redrive db check --json | jq '.findings[]'
  redrive db check --repair

Looks at every page of a file (the files of a server are the server's to check), and then at what redrive knows to be
true: counters equal their items, each dead item has its letter, each item its payload and the payload its checksum,
nothing belongs to an item that is not there. Everything may run meanwhile. --quick reads neither indexes against tables
nor payloads and evidence.

--repair makes anew what is kept beside the items and follows from them: counters, causes, the last number given, on
Redis the sets by which items are found. It touches no item and removes none, and does not write where pages or tables
are damaged.

In a pipe each line starts with its kind, and values are separated by tabs:

\b
  checked   ITEMS
  finding   KIND COUNT REPAIRED TEXT EXAMPLES
  left-out  TEXT
"""


@click.command("check", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--quick", is_flag=True, help="Look at less, in a fraction of the time.")
@click.option("--repair", is_flag=True, help="Count anew what is counted wrong.")
@json_option
@store_option
@verbose_option
def check(*, quick: bool, repair: bool, as_json: bool, store: str) -> Exit:
    upkeep = upkeep_of(store)
    checkup = asyncio.run(upkeep.check(quick=quick))
    mended = upkeep.repairable(checkup) if repair else frozenset()
    if mended:
        asyncio.run(upkeep.repair())
    told = [(finding, finding.kind in mended) for finding in checkup.findings]
    if as_json:
        write_json(_as_object(checkup, told))
    elif on_terminal():
        _show(checkup, told)
    else:
        tabbed(_lines(checkup, told))
    left = [finding for finding, repaired in told if not repaired]
    if repair and left:
        say("redrive: what is left cannot be repaired (restore a backup, or discard and prune the items it is about)")
    if left:
        return Exit.UNSOUND
    # Not to be taken for good news by whoever reads only the code.
    return Exit.FAILED if checkup.left_out else Exit.DONE


Told = list[tuple[Finding, bool]]
"""What was found, and whether it was repaired."""


def _show(checkup: Checkup, told: Told) -> None:
    for finding, repaired in told:
        mark = "repaired" if repaired else finding.kind
        line = clean(f"{mark}: {finding.text}" + (f": {finding.count:,}" if finding.examples else ""))
        write(line if repaired else red(line))
        for example in finding.examples:
            write(f"  {clean(example)}")
        if finding.count > len(finding.examples) > 0:
            write(f"  … and {finding.count - len(finding.examples):,} more")
    for text in checkup.left_out:
        write(clean(f"not looked at: {text}"))
    if not told and not checkup.left_out:
        write(f"sound; {checkup.items:,} items were looked at")


def _lines(checkup: Checkup, told: Told) -> list[list[str]]:
    lines = [["checked", str(checkup.items)]]
    for finding, repaired in told:
        examples = ", ".join(finding.examples) or MISSING
        lines.append(["finding", finding.kind, str(finding.count), "yes" if repaired else "no", finding.text, examples])
    return lines + [["left-out", text] for text in checkup.left_out]


def _as_object(checkup: Checkup, told: Told) -> dict[str, Any]:
    return {
        "sound": all(repaired for _, repaired in told),
        "items": checkup.items,
        "findings": [
            {
                "kind": finding.kind,
                "text": finding.text,
                "count": finding.count,
                "examples": list(finding.examples),
                "repaired": repaired,
            }
            for finding, repaired in told
        ],
        "left_out": list(checkup.left_out),
    }
