"""A producer process: enqueues without end and prints each id when enqueue has returned.

`python -m tests.support.rig.feeder <store URL>`
"""

from __future__ import annotations

import asyncio
import os
import sys

from redrive import Redrive


async def main(url: str) -> None:
    app = Redrive(url, log=False)
    app.queue("q")
    async with app:
        number = 0
        while True:
            number += 1
            item_id = await app.enqueue("q", {"number": number})
            os.write(1, f"{item_id} {number}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
