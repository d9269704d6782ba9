"""An ordered endpoint in simulated worlds: workers, hubs and the edge crash, and any message may be lost.

What arrives is in order and without a gap, never twice at once, and again only after an attempt of unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from redrive.core.item import Item, Millis
from redrive.engine import remote
from redrive.webhooks import delivery
from redrive.webhooks.delivery import Request, Response
from redrive.webhooks.hub import Given
from redrive.webhooks.hub_client import WebhookHub
from tests.support.simulation.hooks import HOOKS, Faults, simulate

FIRST, SEEDS, PARTS = 4, 200, 4


def faults(seeds: range) -> dict[int, Faults]:
    return {seed: found for seed in seeds if (found := simulate(seed)[0])}


def test_an_ordered_endpoint_keeps_its_order() -> None:
    assert faults(range(FIRST)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_ordered_endpoint_keeps_its_order_in_many_worlds(part: int) -> None:
    assert faults(range(FIRST + part, SEEDS, PARTS)) == {}


def test_a_world_is_a_function_of_its_seed() -> None:
    assert len({simulate(3)[1].history_hash() for _ in range(2)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("via", [0, 1], ids=["direct", "hub"])
def test_these_worlds_have_repeats(via: int) -> None:
    """Or their check would check nothing."""
    repeats = [sum(simulate(seed)[1].target.accepted.values()) - HOOKS for seed in range(via, 40, 2)]
    assert sum(repeats) > 3


def planted(name: str, **options: str) -> bool:
    return any(name in simulate(seed, **options)[0] for seed in range(60))


@pytest.mark.slow
def test_r0_an_endpoint_without_order_is_named() -> None:
    assert planted("gap", order="none")


@pytest.mark.slow
def test_r0_an_edge_that_is_impatient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait until the request of a hub that is gone is over."""
    monkeypatch.setattr(remote, "TRAVEL", -60_000)
    assert planted("double")


@pytest.mark.slow
def test_r0_a_hub_that_sends_twice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = WebhookHub._begin  # noqa: SLF001 - where the bug is planted

    def twice(self: WebhookHub, given: Given, end: Millis) -> None:
        begin(self, given, end)
        del self._works[given.id]
        begin(self, given, end)

    monkeypatch.setattr(WebhookHub, "_begin", twice)
    assert planted("double")


@pytest.mark.slow
def test_r0_a_delivery_that_is_only_hoped_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = delivery.Delivery._attempt  # noqa: SLF001 - where the bug is planted

    async def hopeful(self: delivery.Delivery, item: Item) -> None:
        async def sent(item: Item, make: Callable[[], Request]) -> Response:
            response = await self.send(item, make)
            return response if response.status else Response(200)

        await attempt(replace(self, send=sent), item)

    monkeypatch.setattr(delivery.Delivery, "_attempt", hopeful)
    assert planted("gap")
