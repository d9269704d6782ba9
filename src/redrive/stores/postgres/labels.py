"""Tags on PostgreSQL: rows of their own, and a bit among the ties of an item that has any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.core.acts import Refusal, Tag
from redrive.core.terms import TAGGED
from redrive.stores.checks import TAGS_LIMIT, tagged, too_many_tags
from redrive.stores.postgres.arrays import bigints, texts
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.amend import Place
    from redrive.stores.postgres.session import Session


async def refused(session: Session, tx: Tx, places: Sequence[Place], change: Tag) -> dict[int, Refusal]:
    """Those that would have too many, by number."""
    has: dict[int, list[str]] = {place.seq: [] for place in places}
    labelled = [place.seq for place in places if place.ties & TAGGED]
    if labelled:
        for seq, tag in await tx.execute(session.sql("amend", "tags"), (bigints(labelled),)):
            has[seq].append(tag)
    counts = {seq: len(tagged(tags, change)) for seq, tags in has.items()}
    return {seq: too_many_tags(count) for seq, count in counts.items() if count > max(TAGS_LIMIT, len(has[seq]))}


async def tag(session: Session, tx: Tx, places: Sequence[Place], change: Tag) -> None:
    seqs = bigints([place.seq for place in places])
    values = (seqs, texts(change.remove), seqs, texts(sorted({*change.add})))
    await tx.execute(session.sql("amend", "tag"), values)
    await tx.execute(session.sql("amend", "tie"), (seqs,))
