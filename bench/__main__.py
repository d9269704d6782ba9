"""`python -m bench [--rows drain,bulk | growth | all] [--repeats 3] [--profile drain,fail]`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench import report, rows
from bench.harness import RESULTS, CannotMeasure, machine, scratch_folder
from bench.lab import MANY, READER, Lab, Reading

CONCURRENCY = 500


def main() -> int:
    options = _options()
    try:
        with scratch_folder(options.dir) as scratch:
            lab = Lab(scratch, options.concurrency, options.many, options.reader)
            facts = machine(scratch)
            print("  ".join(f"{name}: {value}" for name, value in facts.items()), f"concurrency: {lab.concurrency}")
            if options.profile:
                _print_profiles(rows.profile(lab, options.profile))
                return 0
            readings = _measure(lab, options.rows, options.repeats)
            after = machine(scratch)["fsync_per_s"]
    except CannotMeasure as error:
        print(f"bench: could not measure: {error}", file=sys.stderr)
        return 1
    facts |= {"fsync_per_s_after": after, "concurrency": lab.concurrency, "seconds": round(time.monotonic() - STARTED)}
    report.write(RESULTS / "latest.jsonl", facts, readings, lab.facts)
    lines = report.lines_of(readings)
    print(f"\n{report.table(lines)}\n")
    print(
        f"took {facts['seconds']} s; fsync/s {facts['fsync_per_s']} before, {after} after; {RESULTS / 'latest.jsonl'}"
    )
    if not set(rows.GROWTH) & set(options.rows):
        print("the growth rows (minutes, gigabytes for a while) are not in this: --rows growth, or all")
    for line in lines:
        if line.missed:
            print(f"*** {line.verdict}: {line.line}: {line.figure:.3g}, the target is {line.target} ***")
    return 0


def _measure(lab: Lab, names: list[str], repeats: int) -> list[Reading]:
    """Repeat by repeat and not row by row, so that a disk that changes its mood meets every row."""
    readings: list[Reading] = []
    for repeat in range(repeats):
        lab.next_repeat()
        for name in names:
            if repeat and name in rows.ONCE:
                continue
            print(
                f"\r{time.monotonic() - STARTED:4.0f} s  repeat {repeat + 1}/{repeats}  {name:12}", end="", flush=True
            )
            readings += rows.ROWS[name](lab)
    return readings


def _print_profiles(found: dict[str, dict[str, Any]]) -> None:
    for name, facts in found.items():
        print(f"\n== {name}: {facts['rate']:,.0f}/s unprofiled; CPU µs/item by thread: {facts['cpu_us_per_item']}")
        for thread, text in facts["profile"].items():
            print(f"\n-- {thread}\n{text}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rows", type=_rows, default=list(rows.USUAL), help=", ".join((*rows.ROWS, *rows.GROUPS)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="of the handler; so the worker's batch")
    parser.add_argument("--profile", type=_names(rows.PROFILES), default=[], help=", ".join(rows.PROFILES))
    parser.add_argument("--many", type=int, default=MANY, help="of what the growth rows hold against a thousand")
    parser.add_argument("--reader", type=float, default=READER, help="seconds of the reader in the row wal")
    parser.add_argument("--dir", type=Path, default=RESULTS, help="where the databases go: a real disk")
    return parser.parse_args()


def _rows(text: str) -> list[str]:
    names = [name for word in text.split(",") for name in rows.GROUPS.get(word, (word,))]
    return list(dict.fromkeys(_names(rows.ROWS)(",".join(names))))


def _names(known: dict[str, Any]) -> Any:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return chosen

    return parse


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
