"""What an audit entry says, the same on every store: the journal's `audit` topic holds these, one per act."""

from __future__ import annotations

import re

from msgspec import Struct

from redrive.core import codec
from redrive.core.select import Selection
from redrive.core.verbs import Act, Change, NewEntry

TOPIC = "audit"
IMPORT = "import"
"""The word for letters that were taken in from another store."""


class AuditRecord(Struct, frozen=True):
    """`change` is the word of the act (replay, …, import, prune), `detail` the change itself where there is one."""

    change: str
    selection: Selection
    changed: tuple[str, ...]
    detail: Change | None = None


def word(change: Change) -> str:
    """The word an item's history and the audit use for a change."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(change).__name__).lower()


def entry(record: AuditRecord, by: Act) -> NewEntry:
    return NewEntry(TOPIC, codec.encode(record), by.actor, by.reason, by.request_id)
