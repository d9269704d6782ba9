"""Replay one seed: python -m tests.support.simulation SEED [--trace] [--plant BUG]."""

from __future__ import annotations

import argparse
import sys

from tests.support.simulation.plants import PLANTS, Plant
from tests.support.simulation.play import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description="Replay one seed.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--plant", choices=PLANTS, metavar="BUG", help=f"one of: {', '.join(PLANTS)}")
    options = parser.parse_args()
    planted = PLANTS.get(options.plant, Plant(""))
    with planted.patched():
        outcome = simulate(options.seed, planted.through)
    if options.trace:
        print("\n".join(outcome.notes))  # noqa: T201 - what was asked for
    planted_too = f" --plant {options.plant}" if options.plant else ""
    print(f"{outcome.report()}{planted_too}", f"history {outcome.history}", sep="\n")  # noqa: T201 - as above
    return bool(outcome.faults)


if __name__ == "__main__":
    sys.exit(main())
