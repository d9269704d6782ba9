"""`python -m bench.peers <fill|drain|enqueue> <JSON>`: fill a peer's queue, or work it off and say how fast."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.child import end_with_the_harness, say


class Meter:
    """From the first call of the handler to the last. Threads may call it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._calls = itertools.count(1)
        self._first = 0.0

    def handled(self) -> None:
        number = next(self._calls)
        if number == 1:
            self._first = time.monotonic()
        if number == self._count:
            say(rate=self._count / (time.monotonic() - self._first))


def main() -> None:
    end_with_the_harness()
    role, text = sys.argv[1:]
    config: dict[str, Any] = json.loads(text)
    logging.disable(logging.CRITICAL)  # its log lines are not what is measured
    module = import_module(f"bench.peers.on_{config['engine']}")
    peer = module.PEERS[config["peer"]](config["url"], config["variant"], Meter(config["count"]).handled)
    if role == "fill":
        peer.fill(config["count"])
        say(filled=config["count"])
    elif role == "enqueue":
        say(rate=_enqueued(peer.one, config["seconds"]))
    else:
        peer.work()


def _enqueued(one: Callable[[], object], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        one()
        count += 1
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
