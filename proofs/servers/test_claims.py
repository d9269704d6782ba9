"""R17, the checker: a store that breaks a claim is found out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from tests.support.links.answers import Cut, lose_each
from tests.support.links.claims import KEYS
from tests.support.links.conditions import CutReply, CutRequest
from tests.support.links.link import LOOPBACK, Link
from tests.support.links.trial import HARMLESS, Trial, attempt
from tests.support.links.wire import Manners, WireStore, wire_server

DEADLINE = 0.5
PLENTY = 10.0
"""Byte by byte takes its time."""


@dataclass
class Bench:
    direct: Store
    link: Link

    async def attempt(self, trouble: str, manners: Manners = Manners.GOOD, deadline: float | None = None) -> Trial:
        deadline = deadline or (PLENTY if trouble in HARMLESS else DEADLINE)
        store = WireStore(self.link.port, deadline, manners)
        return await attempt(trouble, store, self.direct, self.link, deadline)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    store = await MemoryStore().open()
    store.use_keys(KEYS)  # keys are not sent over a wire
    async with wire_server(store) as port:
        with Link((LOOPBACK, port)) as link:
            yield Bench(store, link)
    await store.close()


@pytest.mark.parametrize("trouble", ["sliced", "refuse", "black-hole", "half-closed", "cut-before"])
async def test_good_manners_pass(bench: Bench, trouble: str) -> None:
    trial = await bench.attempt(trouble)
    assert trial.faults == {}
    if trouble in HARMLESS:
        assert trial.during.by_answer("ok") == trial.during.words.keys()


async def test_what_may_have_been_written_and_is_told_as_not_written(bench: Bench) -> None:
    trial = await bench.attempt("half-closed", Manners.SURE)
    assert {"put", "settle", "lease", "amend", "append"} <= trial.faults["not so"].keys()


async def test_what_arrives_late_and_is_told_as_not_written(bench: Bench) -> None:
    trial = await bench.attempt("black-hole", Manners.SURE)
    assert {"put", "settle", "lease", "amend", "append"} <= trial.faults["not so"].keys()


async def test_what_never_arrived_and_is_told_as_written(bench: Bench) -> None:
    trial = await bench.attempt("cut-before", Manners.HASTY)
    assert trial.faults["answered"].keys() == trial.faults["not so"].keys() == {"configure", "configure_route", "beat"}


async def test_a_deadline_that_is_not_kept(bench: Bench) -> None:
    trial = await bench.attempt("black-hole", Manners.PATIENT)
    assert trial.faults["late or wrong"].keys() == trial.during.words.keys()


async def test_errors_that_are_not_a_store_s(bench: Bench) -> None:
    # A refusal comes at once; a machine that is busy with other things must not make a late answer of it.
    trial = await bench.attempt("refuse", Manners.RAW, PLENTY)
    assert "ConnectionRefusedError" in trial.faults["late or wrong"]["put"]


# -- answers that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [CutReply, CutRequest])
async def test_lost_answers_with_good_manners(bench: Bench, cut: Cut) -> None:
    store = WireStore(bench.link.port, PLENTY, Manners.GOOD)
    assert await lose_each("put", cut, store, bench.direct, bench.link) == (1, {})


async def test_lost_answers_told_as_not_written(bench: Bench) -> None:
    store = WireStore(bench.link.port, PLENTY, Manners.SURE)
    _, faults = await lose_each("settle", CutReply, store, bench.direct, bench.link)
    assert "it happened after all" in faults["settle, round trip 1"]
    assert await lose_each("settle", CutRequest, store, bench.direct, bench.link) == (1, {})
