"""Dead receipts of a lease end as superseded when a final receipt of it has been delivered, and never arrive later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core.states import State
from redrive.receipts import ReceiptClient, _superseded
from redrive.receipts._delivery import ENDED_BY
from redrive.testing.faults import Fault, FaultyStore
from tests.receipts.target import GONE, REFUSED, Target, opened, receipt
from tests.support.lab import LABS, Lab, Shared, open_lab


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab("memory", tmp_path) as made:
        yield made


@pytest.fixture(params=LABS)
async def each_lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(request.param, tmp_path) as made:
        yield made


async def dead(lab: Lab, client: ReceiptClient, *parts: str, lease: str = "lease-1") -> list[str]:
    """The ids of `running` receipts that were refused."""
    ids = [await lab.drive(client.submit(receipt(lease, "running", summary=part))) for part in parts]
    for each in ids:
        assert await lab.drive(client.wait(each)) is False
    return ids


async def test_the_final_receipt_of_another_process_ends_them(each_lab: Lab) -> None:
    lab = each_lab
    target = Target(lab.clock, REFUSED, REFUSED, REFUSED)
    async with opened(lab, target) as client:
        ids = await dead(lab, client, "1/2", "2/2")
        (other,) = await dead(lab, client, "1/1", lease="lease-2")
    async with opened(lab, target) as client:
        assert client.metrics.dead_letters == 3
        final = await lab.drive(client.submit(receipt()))
        assert await lab.drive(client.wait(final)) is True
        await lab.drive(client.close())
        assert client.metrics.superseded["running"] == 2
    async with opened(lab, target) as client:
        assert client.metrics.dead_letters == await client.dead_letters.size() == 1
        assert [each.id for each in await client.dead_letters.get_all()] == [other], "its lease goes on"
        for each in ids:
            history = await client.app.history(each)
            assert history.item.state is State.CANCELLED
            assert f"superseded: final receipt {final} ended the lease" in history.attempts[-1].note
        assert target.leases[-1] == ("lease-1", "complete")


async def test_a_lease_that_the_broker_does_not_know_any_more_is_an_end_too(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED, GONE)
    async with opened(lab, target) as client:
        await dead(lab, client, "1/1")
        assert await lab.drive(client.send_receipt(receipt())) is False
        await lab.until(lambda: client.metrics.dead_letters == 0)
        assert client.metrics.superseded == {"running": 1, "complete": 1}


async def test_they_stay_while_the_final_one_is_dead_too(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED, REFUSED)
    async with opened(lab, target) as client:
        await dead(lab, client, "1/1")
        assert await lab.drive(client.send_receipt(receipt())) is False
        await lab.drive(client.close())
        assert client.metrics.dead_letters == 2


async def test_another_end_is_sent_when_the_first_was_refused(each_lab: Lab) -> None:
    """Nothing had arrived. When it arrives it ends the lease, and all dead receipts of it."""
    lab = each_lab
    target = Target(lab.clock, REFUSED, REFUSED, REFUSED)
    async with opened(lab, target) as client:
        await dead(lab, client, "1/1")
        assert await lab.drive(client.send_receipt(receipt())) is False
        failed = receipt(status="failed", summary="after all")
        assert await lab.drive(client.send_receipt(failed)) is False
        assert (await client.dead_letters.size(), len(target.calls)) == (3, 3)
        assert await lab.drive(client.send_receipt(failed)) is True
        await lab.drive(client.close())
        assert [status for _, status in target.leases] == ["running", "complete", "failed", "failed"]
        assert client.metrics.superseded == {"running": 1, "complete": 1}
    async with opened(lab, target) as client:
        assert await client.dead_letters.size() == 0
        assert await lab.store.documents(ENDED_BY) == (), "the cancelled first one says the same"
        other = receipt(status="failed", summary="and again")
        assert await lab.drive(client.send_receipt(other)) is False
        assert len(target.calls) == 4


@pytest.mark.parametrize("way", ["recover", "replay", "send", "restore"])
async def test_the_first_end_does_not_arrive_after_another_one(each_lab: Lab, way: str) -> None:
    """Also if it could not be ended when the other one arrived: it was in the trash, or the store failed."""
    lab, target = each_lab, Target(each_lab.clock, REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        (dead,) = await client.dead_letters.get_all()
        if way == "restore":
            assert await lab.drive(client.dead_letters.remove(dead.id)) is True
        else:
            faulty.fail("lease_letters", Fault.UNAVAILABLE)
        failed = await lab.drive(client.submit(receipt(status="failed")))
        assert await lab.drive(client.wait(failed)) is True
        await lab.pass_time("1m")
        faulty.heal()
        other = receipt(status="failed", summary="and again")
        assert await lab.drive(client.send_receipt(other)) is False, "nor does a third one"
        if way == "restore":
            await lab.drive(client.app.letters.restore([dead.id], reason="by mistake"))
        assert await client.dead_letters.size() == 1
        if way == "recover":
            done = await lab.drive(client.recover())
            assert [each.id for each in done.superseded] == [dead.id]
        elif way == "send":
            assert await lab.drive(client.send_receipt(receipt())) is False
        else:
            await lab.drive(client.app.letters.replay("queue:receipts", reason="the broker is back"))
            assert await lab.drive(client.wait(dead.id)) is False
        history = await client.app.history(dead.id)
        assert history.item.state is State.CANCELLED
        assert f"superseded: final receipt {failed} ended the lease" in history.attempts[-1].note
        assert [status for _, status in target.leases] == ["complete", "failed"]


async def test_a_recovery_that_delivers_another_end_supersedes_the_first_in_the_next_one(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED, REFUSED, REFUSED)
    async with opened(lab, target) as client:
        for status in ("complete", "failed"):
            assert await lab.drive(client.send_receipt(receipt(status=status))) is False
        complete, failed = [each.id for each in await client.dead_letters.get_all()]
        done = await lab.drive(client.recover())
        assert (done.delivered, [each.id for each in done.kept]) == ((failed,), [complete])
        done = await lab.drive(client.recover())
        assert [each.id for each in done.superseded] == [complete]
        assert [status for _, status in target.leases] == ["complete", "failed", "complete", "failed"]


async def test_another_end_that_was_not_settled_is_delivered_again(lab: Lab) -> None:
    """The document that names it does not supersede it."""
    target = Target(lab.clock, REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        faulty.next("write_documents", Fault.UNKNOWN)
        failed = await lab.drive(client.submit(receipt(status="failed")))
        await lab.until(lambda: len(target.calls) == 2)
        faulty.heal()
        assert await lab.drive(client.wait(failed)) is True
        assert [status for _, status in target.leases] == ["complete", "failed", "failed"]


async def test_the_first_end_of_a_lease_reads_nothing_more(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, Target(lab.clock), store=faulty) as client:
        faulty.fail("document", Fault.UNAVAILABLE)
        assert await lab.drive(client.send_receipt(receipt())) is True


async def test_more_progress_is_no_end(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED)
    async with opened(lab, target) as client:
        await dead(lab, client, "1/2")
        assert await lab.drive(client.send_receipt(receipt(status="running", summary="2/2"))) is True
        await lab.drive(client.close())
        assert client.metrics.dead_letters == 1


async def test_a_store_that_fails_leaves_them_for_the_recovery(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        (running,) = await dead(lab, client, "1/1")
        faulty.fail("lease_letters", Fault.UNAVAILABLE)
        assert await lab.drive(client.send_receipt(receipt())) is True
        await lab.pass_time("1m")
        assert client.metrics.dead_letters == 1
        faulty.heal()
        done = await lab.drive(client.recover())
        assert [each.id for each in done.superseded] == [running]


async def test_a_client_that_is_closed_meanwhile_lets_them_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(lab.clock, REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        await dead(lab, client, "1/1")
        held, stop = faulty.hold("lease_letters"), client.app.stop

        async def stop_and_let_go() -> None:
            await stop()
            asyncio.get_running_loop().call_soon(held.release)

        monkeypatch.setattr(client.app, "stop", stop_and_let_go)
        assert await lab.drive(client.send_receipt(receipt())) is True
        await held.reached.wait()
        await lab.drive(client.close())
        assert client.metrics.superseded["running"] == 1


async def test_many_leases_end_together_page_by_page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_superseded, "LEASES", 3)
    monkeypatch.setattr(_superseded, "PAGE_LIMIT", 2)
    leases = [f"lease-{number}" for number in range(8)]
    target = Target(lab.clock, *[REFUSED] * 17)
    async with opened(lab, target) as client:
        for lease in leases:
            await dead(lab, client, "1/2", "2/2", lease=lease)
        (other,) = await dead(lab, client, "1/1", lease="lease-8")
        finals = [await lab.drive(client.submit(receipt(lease))) for lease in leases]
        for final in finals:
            assert await lab.drive(client.wait(final)) is True
        await lab.drive(client.close())
        assert client.metrics.superseded["running"] == 16
    async with opened(lab, target) as client:
        assert [each.id for each in await client.dead_letters.get_all()] == [other]
