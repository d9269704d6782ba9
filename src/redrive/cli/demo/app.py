"""The app of the demo: three queues with a way to fail each. Its workers import it as `redrive.cli.demo.app:app`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from redrive import Item, Policy, Redrive, constant, dead_on, exponential

VARIABLE = "REDRIVE_DEMO"
"""In the environment of a worker: where the store is, and the folder that stands for the world outside."""
MAX_CRASHES = 3
SCHEDULE = exponential("100ms", factor=2)
LOAD: dict[str, list[object]] = {
    "orders": [{"order": number, "amount": "12,50" if number % 5 == 0 else "12.50"} for number in range(1, 61)],
    "emails": [{"to": "no-address-at-all" if number == 3 else f"user{number}@example.org"} for number in range(1, 25)],
    "images": [{"name": "poison.png" if number == 4 else f"picture{number}.png"} for number in range(1, 9)],
}
EFFECTS = "effects.log"
FIXED = "bug-is-fixed"


def environment(url: str, place: Path) -> dict[str, str]:
    return {VARIABLE: json.dumps({"url": url, "place": str(place)})}


def build(url: str, place: Path) -> Redrive:
    app = Redrive(url)

    @app.handler("orders", policy=Policy(SCHEDULE, max_attempts=3), lease="1500ms")
    async def charge(order: int, amount: str, item: Item) -> None:
        await asyncio.sleep(0.02)
        if order % 4 == 0 and item.errors < 2:
            raise ConnectionError(f"payment gateway does not answer for order {order}")
        if "," in amount and not (place / FIXED).exists():
            raise ArithmeticError(f"amount {amount!r} of order {order} is not a number")
        _finished(place, item)

    @app.handler("emails", policy=Policy(rules=[dead_on(ValueError)]), lease="1500ms")
    def send(to: str, item: Item) -> None:
        if "@" not in to:
            raise ValueError(f"{to!r} is not an address")
        _finished(place, item)

    @app.handler("images", policy=Policy(constant("100ms"), max_crashes=MAX_CRASHES), lease="1500ms")
    async def shrink(name: str, item: Item) -> None:
        if name == "poison.png":
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)  # what a bug in a C library or the kernel's OOM killer does
        await asyncio.sleep(0.3)
        _finished(place, item)

    return app


def _finished(place: Path, item: Item) -> None:
    """The effect on the world outside: one line per run that came to its end."""
    with (place / EFFECTS).open("a") as log:
        log.write(f"{item.id}\n")


if VARIABLE in os.environ:  # here a worker imports us
    _told = json.loads(os.environ[VARIABLE])
    app = build(_told["url"], Path(_told["place"]))
