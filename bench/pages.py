"""Looking at a million letters: every filter that an index serves, alone and in pairs, and the counts beside them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from bench.harness import CannotMeasure
from bench.lab import Lab, Reading
from bench.load import QUEUE
from redrive import Redrive
from redrive.core.verbs import CauseTally
from redrive.office.letters import letters_matching
from redrive.stores.url import store_from_url

TIMES = 5
AT_MOST = 50.0
PAGE = 100
STEP = 10_000
UNINDEXED = "age, which has no index"
"""It is looked for in slices, however long that takes; so there is a figure and no target."""

Look = Callable[[], Awaitable[object]]


def filters(common: CauseTally, rare: CauseTally) -> dict[str, tuple[str, ...]]:
    """What people ask, by kind. Some match much, some little and some nothing: a page must be quick all the same."""
    return {
        "one field": (
            "",
            f"queue:{common.queue}",
            f"queue:{QUEUE}",
            f"cause:{common.cause}",
            f"cause:{rare.cause}",
            "cause:000000000000",
            f"error:{common.error}",
            f"error:{rare.error}",
            "error:requests.exceptions.HTTPError",
            "error:HTTPError",
            "error:Unheard",
            "category:timeout",
            "category:auth",
            "category:unheard",
            "disposition:archived",
            "disposition:trash",
            "died<1h",
            "died>28d",
            "died>10d died<11d",
        ),
        "two fields": (
            f"queue:{common.queue} error:{common.error}",
            f"queue:{rare.queue} error:{common.error}",
            f"queue:{common.queue} error:TimeoutError",
            f"queue:{common.queue} category:network",
            f"queue:{common.queue} category:auth",
            f"queue:{common.queue} category:timeout",
            f"queue:{common.queue} cause:{common.cause}",
            f"queue:{QUEUE} cause:{common.cause}",
            f"queue:{rare.queue} cause:{rare.cause}",
            f"queue:{common.queue} died<1d",
            f"queue:{common.queue} died>20d",
            "error:KeyError died>20d",
            "category:data died>20d",
            "disposition:archived queue:emails",
            "disposition:trash error:KeyError",
            "disposition:archived category:auth",
            f"disposition:trash cause:{common.cause}",
            f"disposition:trash cause:{rare.cause}",
        ),
        UNINDEXED: ("age<1h", "age<1d", "age>20d", "age>40d", f"queue:{common.queue} age>20d"),
    }


def page(lab: Lab) -> list[Reading]:
    return asyncio.run(_looks(lab, lab.lettered(lab.many)))


async def _looks(lab: Lab, url: str) -> list[Reading]:
    place, within = await _middle(url), await _middle(url, QUEUE)
    async with Redrive(url, log=False) as app:
        causes = await app.causes(limit=1000)
        readings = []
        for kind, texts in filters(causes[0], causes[-1]).items():
            found = {text: await _median(lambda text=text: app.letters.find(text, limit=PAGE)) for text in texts}  # type: ignore[misc]  # the default binds the text
            lab.facts += [{"look": text, "ms": took} for text, took in found.items()]
            slowest = max(found, key=lambda text: found[text])
            name = f"page of letters by {kind}, slowest of {len(texts)}: {slowest or 'no filter'}"
            readings.append(Reading(name, found[slowest], "ms", at_most=None if kind == UNINDEXED else AT_MOST))
        others: dict[str, Look] = {
            "page of letters, deep": lambda: app.letters.find(limit=PAGE, cursor=place),
            "page of letters, deep in a queue": lambda: app.letters.find(f"queue:{QUEUE}", limit=PAGE, cursor=within),
            "tally": app.tally,
            "causes": app.causes,
            "causes of a queue": lambda: app.causes(QUEUE),
        }
        for name, look in others.items():
            readings.append(Reading(f"{name}, {lab.many:,} letters", await _median(look), "ms", at_most=AT_MOST))
        if not len(await app.letters.find(limit=PAGE, cursor=place)) == PAGE:
            raise CannotMeasure("the deep page is not full")
    return readings


async def _median(look: Look) -> float:
    """Milliseconds."""
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        await look()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


async def _middle(url: str, queue: str = "") -> str:
    """Where half of the open letters (of a queue) lie behind: the place that paging thousands of times leads to."""
    store = await store_from_url(url).open()
    open_letters = letters_matching(f"queue:{queue}" if queue else "")
    behind = sum(row.open for row in (await store.tally()).queues if queue in ("", row.queue)) // 2
    cursor = None
    while behind > 0:
        page = await store.ids(open_letters, min(behind, STEP), cursor)
        behind, cursor = behind - len(page.ids), page.next
    await store.close()
    if cursor is None:
        raise CannotMeasure("there are no letters to page through")
    return cursor
