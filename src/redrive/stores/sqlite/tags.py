"""Tags on SQLite: labels of the few items that have any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redrive.core import codec
from redrive.core.acts import Change, Refusal, Tag
from redrive.stores.checks import TAGS_LIMIT, tagged, too_many_tags
from redrive.stores.sqlite.tied import numbers
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "tags")


def refusals(tx: Tx, seqs: Iterable[int], change: Change) -> Mapping[int, Refusal]:
    """By the number of the item, of those that would have too many."""
    if not isinstance(change, Tag) or not change.add:
        return {}
    found: dict[int, list[str]] = {}
    for seq, tag in tx.execute(_SQL["of"], (numbers(seqs),)):
        found.setdefault(seq, []).append(tag)
    after = {seq: len(tagged(tags, change)) for seq, tags in found.items()}
    return {seq: too_many_tags(count) for seq, count in after.items() if count > max(TAGS_LIMIT, len(found[seq]))}


def change_all(tx: Tx, seqs: Iterable[int], change: Tag) -> None:
    meant = numbers(seqs)
    if change.add:
        tx.execute(_SQL["add"], (codec.encode(change.add).decode(), meant))
    if change.remove:
        tx.execute(_SQL["remove"], (codec.encode(change.remove).decode(), meant))
    tx.execute(_SQL["mark"], (meant,))


def insert(tx: Tx, rows: Iterable[tuple[str, int]]) -> None:
    tx.executemany(_SQL["insert"], rows)


def forget(tx: Tx, seqs: list[int]) -> None:
    if seqs:
        tx.execute(_SQL["forget"], (numbers(seqs),))
