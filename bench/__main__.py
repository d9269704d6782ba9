"""`python -m bench [--store sqlite] [--rows drain,bulk | features | growth | all] [--repeats 3] [--profile drain]`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any

from bench import beside, engines, report, rows
from bench.harness import RESULTS, CannotMeasure, machine, scratch_folder
from bench.lab import Lab, Reading, Scale

_PEERS_NEEDED = frozenset({"peers", "singles"})


def main() -> int:
    options = _options()
    logging.disable(logging.WARNING)  # a store that does not wait for the disk says so, and here it is meant
    try:
        with (
            scratch_folder(options.dir) as scratch,
            engines.started(options.store, scratch, watched=bool(options.profile)) as engine,
        ):
            scale = Scale(options.concurrency, options.many, options.reader, options.seconds)
            lab = Lab(engine, scratch, scale, options.peers)
            facts = machine(scratch) | engine.facts()
            print("  ".join(f"{name}: {value}" for name, value in facts.items()), f"concurrency: {lab.concurrency}")
            if options.profile:
                _print_profiles(rows.profile(lab, options.profile))
                return 0
            if _PEERS_NEEDED & set(options.rows):
                lab.beside.check()
            readings = _measure(lab, options.rows, options.repeats)
            after = machine(scratch)["fsync_per_s"]
    except CannotMeasure as error:
        print(f"bench: could not measure: {error}", file=sys.stderr)
        return 1
    facts |= {"fsync_per_s_after": after, "concurrency": lab.concurrency, "seconds": round(time.monotonic() - STARTED)}
    _tell(lab, options, facts, readings)
    return 0


def _tell(lab: Lab, options: argparse.Namespace, facts: dict[str, object], readings: list[Reading]) -> None:
    path = RESULTS / f"{lab.engine.name}.jsonl"
    report.write(path, facts, readings, lab.facts)
    lines = report.lines_of(readings)
    print(f"\n{report.table(lines)}\n")
    disk = f"fsync/s {facts['fsync_per_s']} before, {facts['fsync_per_s_after']} after"
    print(f"took {facts['seconds']} s; {disk}; {path}")
    if not rows.GROWTH[lab.engine.name].keys() & set(options.rows):
        print("the growth rows (minutes, gigabytes for a while) are not in this: --rows growth, or all")
    for peer, why in lab.beside.silent.items():
        print(f"*** {peer} gave no figure and is not among the peers: {why} ***")
    for line in lines:
        if line.missed:
            print(f"*** {line.verdict}: {line.line}: {line.figure:.3g}, the target is {line.target} ***")


def _measure(lab: Lab, names: list[str], repeats: int) -> list[Reading]:
    """Repeat by repeat and not row by row, so that a disk that changes its mood meets every row."""
    known = rows.rows_of(lab.engine.name)
    readings: list[Reading] = []
    for repeat in range(repeats):
        lab.next_repeat()
        for name in names:
            if repeat and name in rows.ONCE:
                continue
            print(
                f"\r{time.monotonic() - STARTED:4.0f} s  repeat {repeat + 1}/{repeats}  {name:12}", end="", flush=True
            )
            readings += known[name](lab)
    return readings


def _print_profiles(found: dict[str, dict[str, Any]]) -> None:
    for name, facts in found.items():
        cpu, served = facts["cpu_us_per_item"], facts["server_us_per_item"]
        print(f"\n== {name}: {facts['rate']:,.0f}/s unprofiled; CPU µs/item by thread: {cpu}, server: {served}")
        if facts["server"]:
            print(f"\n-- server\n{facts['server']}")
        for thread, text in facts["profile"].items():
            print(f"\n-- {thread}\n{text}")


def _options() -> argparse.Namespace:
    scale = Scale()
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--store", choices=engines.NAMES, default=engines.NAMES[0])
    parser.add_argument("--rows", default="usual", help=f"{', '.join(rows.GROUPS)}, or some of a store's rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=scale.seconds, help="of a run, at least; less is for a try")
    parser.add_argument(
        "--concurrency", type=int, default=scale.concurrency, help="of the handler; so the worker's batch"
    )
    parser.add_argument("--profile", type=_profiles, default=[], help=", ".join(rows.PROFILES))
    parser.add_argument("--many", type=int, default=scale.many, help="of what the growth rows hold against a thousand")
    parser.add_argument("--reader", type=float, default=scale.reader, help="seconds of the reader in the row wal")
    parser.add_argument("--dir", type=Path, default=RESULTS, help="where the stores go: a real disk")
    parser.add_argument("--peers", type=Path, default=beside.PYTHON, help="the Python that has the peers")
    options = parser.parse_args()
    try:
        options.rows = rows.chosen(options.store, options.rows.split(","))
    except KeyError as error:
        known = ", ".join((*rows.GROUPS, *rows.rows_of(options.store)))
        parser.error(f"argument --rows: {error.args[0]!r} is not one of {known}")
    return options


def _profiles(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in rows.PROFILES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(rows.PROFILES)}")
    return names


STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
