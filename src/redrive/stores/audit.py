"""What an audit entry says, the same on every store: the journal's `audit` topic holds these, one per act."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import (
    Act,
    Change,
    Edit,
)
from redrive.core.select import Selection
from redrive.core.verbs import NewEntry

TOPIC = "audit"
IMPORT = "import"
"""The word for letters that were taken in from another store."""


class AuditRecord(Struct, frozen=True):
    """`change` is the word of the act (replay, …, import, prune), `detail` the change itself where there is one.

    The detail of an edit is without the payload: the item has it.
    """

    change: str
    selection: Selection
    changed: tuple[str, ...]
    detail: Change | None = None


def word(change: Change) -> str:
    """The word an item's history and the audit use for a change."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(change).__name__).lower()


def entry(record: AuditRecord, by: Act) -> NewEntry:
    if isinstance(record.detail, Edit):
        record = replace(record, detail=replace(record.detail, payload=b""))
    return NewEntry(TOPIC, codec.encode(record), by.actor, by.reason, by.request_id)
