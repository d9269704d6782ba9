"""PostgreSQL serves pages and acts by an index, whatever statistics its planner has."""

from __future__ import annotations

import pytest

from redrive.stores.postgres.session import Session
from tests.stores.postgres_plans_kit import LOOKED, Planned
from tests.stores.test_postgres_pages import acts_are_served, pages_are_served, planned, session

__all__ = ["planned", "session"]

ACTS = ("never", "when all were ready", "when all were done", "when all letters were replayed")


@pytest.mark.parametrize("looked", LOOKED)
async def test_pages_are_served_by_an_index(
    planned: Planned,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    looked: str,
) -> None:
    planned.believe(looked)
    await pages_are_served(session, monkeypatch)
    planned.still_believe()


@pytest.mark.parametrize("looked", ACTS)
async def test_acts_find_the_first_by_an_index(
    planned: Planned,
    session: Session,
    looked: str,
) -> None:
    planned.believe(looked)
    await acts_are_served(session)
    planned.still_believe()
