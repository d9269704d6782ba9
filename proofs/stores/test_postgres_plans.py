"""PostgreSQL serves pages and acts by an index, whatever statistics its planner has."""

from __future__ import annotations

import pytest

from redrive.stores.postgres.session import Session
from tests.stores.postgres_plans_kit import LOOKED, Planned
from tests.stores.test_postgres_pages import acts_are_served, pages_are_served, planned, session

__all__ = ["planned", "session"]


@pytest.mark.parametrize("looked", LOOKED)
async def test_pages_are_served_by_an_index(
    planned: Planned,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    looked: str,
) -> None:
    await pages_are_served(planned, session, monkeypatch, looked)


@pytest.mark.parametrize("looked", ["never", "when all were ready", "when all letters were replayed"])
async def test_acts_find_the_first_by_an_index(
    planned: Planned,
    session: Session,
    looked: str,
) -> None:
    await acts_are_served(planned, session, looked)
