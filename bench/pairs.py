"""`python -m bench.pairs OTHER [--store sqlite] [--rows drain,fail,bulk] [--pairs 9]`: this checkout beside another.

Both are measured by turns, each with its own bench and .venv, so that a machine that changes its mood meets both. The
ratio of a row is the median of its pairs: this checkout's figure over the other's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from bench.engines import NAMES
from bench.harness import ROOT


def main() -> int:
    options = _options()
    ratios: dict[str, list[float]] = {}
    for pair in range(options.pairs):
        # The second of two finds another machine than the first, so they change places.
        trees = (options.other, ROOT) if pair % 2 else (ROOT, options.other)
        figures = {tree: _measure(tree, options) for tree in trees}
        for line, value in figures[ROOT].items():
            if line in figures[options.other]:
                ratios.setdefault(line, []).append(value / figures[options.other][line])
        print(f"pair {pair + 1}: {', '.join(f'{line} {found[-1]:.2f}' for line, found in ratios.items())}", flush=True)
    for line, found in ratios.items():
        print(f"{options.store}  {line}: median {statistics.median(found):.3f} ({min(found):.2f} to {max(found):.2f})")
    return 0


def _measure(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    command = [tree / ".venv/bin/python", "-m", "bench", "--store", options.store, "--rows", options.rows]
    command += ["--repeats", "1", "--seconds", str(options.seconds)]
    done = subprocess.run([*map(str, command)], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {tree} could not be measured:\n{done.stderr}")
    lines = (tree / "bench/results" / f"{options.store}.jsonl").read_text(encoding="utf-8").splitlines()
    readings = [reading for reading in map(json.loads, lines) if reading["is"] == "reading"]
    # Of CPU time less is better: so it is turned round, and a ratio above 1 is always a gain.
    turned = {"/s": 1, "µs": -1}
    return {each["line"]: each["value"] ** turned[each["unit"]] for each in readings if each["unit"] in turned}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.pairs", description=__doc__)
    parser.add_argument("other", type=Path, help="another checkout, with a .venv of its own")
    parser.add_argument("--store", choices=NAMES, default=NAMES[0])
    parser.add_argument("--rows", default="drain,fail,bulk")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run, at least")
    options = parser.parse_args()
    options.other = options.other.resolve()
    if not (options.other / ".venv/bin/python").exists():
        parser.error(f"argument other: {options.other} has no .venv: run `make run` in it first")
    return options


if __name__ == "__main__":
    sys.exit(main())
