"""R17 bad links. No call outlasts its deadline on a link that is slow, cut or silent; workers recover in ten seconds.

Also R16: the answer of any verb is lost on the link.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from redrive.core.states import State
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from tests.support.links.answers import Cut, lose_each
from tests.support.links.claims import WAIT, Round, hear
from tests.support.links.conditions import BlackHole, CutReply, CutRequest
from tests.support.links.link import Link
from tests.support.links.rides import ride
from tests.support.links.sizes import RIDES, TRIALS, Rides
from tests.support.links.trial import HARMLESS, TROUBLES, attempt
from tests.support.links.works import Setting
from tests.support.rig.size import proof_size
from tests.support.servers.server import with_options
from tests.support.stores import fresh_store

SIZE = f"every verb, each trial {TRIALS[proof_size()]} x"

KINDS = ("postgres", "redis")
DEADLINE = 1.0
AMPLE = 2.0
"""For all verbs at once, each of which needs a new connection first: on a busy machine that takes a while."""
HURRIED = 0.5
"""Less than a short trouble lasts."""
PLENTY = 150.0
"""A deadline for links on which everything takes its time, and for a machine that is busy with other things."""
CONNECTED = 5.0
"""Seconds for a new connection, unless one says otherwise."""
BACK_WITHIN = 10.0
MARGIN = 10.0
"""Seconds for a loaded machine."""

POOLS = (48, 2, 8)
"""Connections: one for every verb, or so few that most of them wait for one."""
VERBS = Round("all", MemoryStore()).calls(MemoryStore()).keys()


@dataclass(frozen=True)
class Site:
    """A fresh store, and a link to its server."""

    url: str
    link: Link

    def through(self, deadline: float, pool: int = 8) -> str:
        # Where everything takes its time, a connection may take as long as a call.
        limits = {"timeout": deadline, "connect_timeout": max(deadline, CONNECTED)}
        options = {name: f"{int(seconds * 1000)}ms" for name, seconds in limits.items()}
        return with_options(self.link.through(self.url), {**options, "pool": str(pool)})

    @asynccontextmanager
    async def stores(self, deadline: float, pool: int = 8) -> AsyncIterator[tuple[Store, Store]]:
        """Through the link, and past it."""
        direct = await store_from_url(self.url).open()
        try:
            store = await store_from_url(self.through(deadline, pool)).open()
            try:
                yield store, direct
            finally:
                await store.close()
        finally:
            await direct.close()


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with fresh_store(request.param, tmp_path) as url, Link.to(url) as link:
        store_from_url(url)  # an engine reads its statements when it is first imported, which no loop should wait for
        yield Site(url, link)


# -- every verb ------------------------------------------------------------------------------------------------------


async def try_every_verb(site: Site, trouble: str, times: int) -> None:
    deadline = PLENTY if trouble in HARMLESS else AMPLE
    for number in range(times):
        async with site.stores(deadline, POOLS[(number + len(trouble)) % len(POOLS)]) as (store, direct):
            trial = await attempt(f"{trouble}:{number}", store, direct, site.link, deadline)
            assert trial.faults == {}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_r17_every_verb_on_a_bad_link(site: Site, trouble: str) -> None:
    await try_every_verb(site, trouble, TRIALS[proof_size()])


async def test_r17_open_close_and_the_first_wait_keep_their_deadline(site: Site) -> None:
    """The first wait makes a connection of its own; the others are no verbs, but who starts or stops waits for them."""
    async with site.stores(DEADLINE) as (store, _):
        late = store_from_url(site.through(DEADLINE))
        site.link.set(BlackHole())
        first = await hear({"open": late.open, "wait": lambda: store.wait(["any"], WAIT)})
        then = await hear({"close": store.close, "close of the other": late.close})
        site.link.heal()
    assert first.words["open"].answer == "no", first.words
    assert then.by_answer("ok") == then.words.keys(), then.words
    assert first.faults(DEADLINE) | then.faults(DEADLINE) == {}


# -- answers that are lost -------------------------------------------------------------------------------------------


async def lose_answers(site: Site, cut: Cut, *verbs: str) -> None:
    async with site.stores(PLENTY) as (store, direct):
        for verb in verbs:
            trips, faults = await lose_each(verb, cut, store, direct, site.link)
            assert faults == {}
            assert trips > 0, f"there was nothing to cut in {verb}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cut", [CutReply, CutRequest])
async def test_r16_any_answer_is_lost_on_the_link(site: Site, cut: Cut) -> None:
    # A checkup reads everything there is, in as many round trips as that takes.
    await lose_answers(site, cut, *sorted(VERBS - {"check"}))


# -- workers ---------------------------------------------------------------------------------------------------------


async def work_on(folder: Path, site: Site, size: Rides, troubles: Iterable[str], deadline: float = DEADLINE) -> None:
    setting = Setting(folder, site.url, site.through(deadline), size.workers, size.lease, size.limit)
    report = await ride(site.link, setting, size, [*troubles])
    print(report)  # noqa: T201 - shown when it fails, and by -s
    assert not report.verdict.faults, str(report)
    for final in report.survey.finals.values():
        assert final.item.state is (State.DEAD if final.item.queue == "doomed" else State.DONE), final.item
    assert max(seconds for _, seconds in report.recoveries) <= BACK_WITHIN + MARGIN, str(report)


@pytest.mark.timeout(1800)
async def test_r17_workers_on_a_bad_link(tmp_path: Path, site: Site) -> None:
    """One trouble after the other, and the same workers all the time."""
    await work_on(tmp_path, site, RIDES[proof_size()], [name for name in TROUBLES if name not in HARMLESS])


@pytest.mark.timeout(1800)
async def test_r17_workers_on_a_slow_link(tmp_path: Path, site: Site) -> None:
    """They go on all the time."""
    await work_on(tmp_path, site, RIDES[proof_size()], sorted(HARMLESS), PLENTY)
