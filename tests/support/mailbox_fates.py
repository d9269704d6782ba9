"""What became of each message of a run, and whether that is what was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
from msgspec import Struct

from redrive.core.item import Ending, History
from redrive.core.states import State
from redrive.mailboxes import MainLoopResult, Message, StoreMailbox
from tests.support.rig.survey import Survey, survey

Box = StoreMailbox[Any, Any]

MIX = ("good", "flaky", "good", "failing", "good", "barred", "good", "broken", "good", "garbage")
"""One of each in turn. Some more are `deadly`, so many as the order says."""
ENDS_WELL = frozenset({"good", "flaky"})
SILENT = frozenset({"garbage"})
"""Nobody can be told about bytes that say nothing."""
LIMIT = 3
"""Deliveries, of the loops' policy."""
KEPT = "3650d"


class Fate(Struct, frozen=True):
    """`runs`: how often it was begun. `letters`: how often its dead-letter mailbox gave it. `replies`: what was
    answered, an error's text or "" for an output.
    """

    id: str
    state: str
    crashes: int
    lost: int
    runs: int
    letters: int
    replies: tuple[str, ...]

    @property
    def kind(self) -> str:
        return self.id.partition("-")[0]


class Report(Struct, frozen=True):
    """`died`: processes that a message took with it. `left`: what did not end. `strays`: what belongs to no message."""

    fates: tuple[Fate, ...]
    kills: int
    died: int
    left: dict[str, int]
    damage: tuple[str, ...]
    strays: tuple[str, ...]


def keys_of(messages: int, deadly: int) -> list[str]:
    """In the order in which they are sent: the deadly ones spread among the others."""
    plain = [f"{MIX[number % len(MIX)]}-{number}" for number in range(messages)]
    for number in range(deadly):
        plain.insert(number * (messages + deadly) // max(1, deadly), f"deadly-{number}")
    return plain


def request_id(key: str) -> UUID:
    return uuid5(NAMESPACE_OID, key)


def look(keys: Sequence[str], requests: Box, dead: Box, replies: Box, ledger: Path) -> dict[str, object]:
    """All of a report that can be seen when it is over."""
    here = requests.shared
    there = dead.shared
    crossing = here is not there
    found: Survey = here.call(survey, here.store)
    letters = Counter(letter.id for letter in _all(dead))
    answers: dict[UUID, list[str]] = {}
    for reply in _all(replies):
        answer: MainLoopResult[object] = reply.body
        answers.setdefault(answer.request_id, []).append(answer.error or "")
    runs = Counter(ledger.read_text().splitlines())
    fates = [
        _fate(found.finals.get(key), key, runs[key], letters.pop(key, 0), answers.pop(request_id(key), []))
        for key in keys
    ]
    damage = [f"{where}: {text}" for where, text in found.miscounts.items()]
    for place in {here, there}:
        damage += [f"{finding.kind}: {finding.text}" for finding in place.call(place.store.check).findings]
    tally = here.call(here.store.tally)
    left = {row.queue: row.ready + row.held + row.parked + row.leased for row in tally.queues if row.queue != "replies"}
    left["letters at home"] = sum(row.open for row in tally.queues) if crossing else 0
    strays = [f"letter {key}" for key in letters] + [f"reply {key}: {text}" for key, text in answers.items()]
    left = {what: count for what, count in left.items() if count}
    return {"fates": fates, "damage": damage, "left": left, "strays": strays}


def _all(mailbox: Box) -> Iterator[Message[Any, Any]]:
    while got := mailbox.receive(max_messages=10, visibility_timeout=43_200):
        yield from got


def _fate(history: History | None, key: str, runs: int, letters: int, replies: list[str]) -> Fate:
    if history is None:
        return Fate(key, "gone", 0, 0, runs, letters, tuple(replies))
    item = history.item
    lost = sum(attempt.ending is Ending.CRASHED for attempt in history.attempts)
    return Fate(key, str(item.state), item.crashes, lost, runs, letters, tuple(replies))


def faults(report: Report, *, crossing: bool) -> list[str]:
    """What was promised and is not so."""
    found = [what for fate in report.fates for what in _faults(fate, crossing)]
    found += [f"{count} left in {queue}" for queue, count in report.left.items()]
    return [*found, *report.damage, *report.strays]


def _faults(fate: Fate, crossing: bool) -> Iterator[str]:
    # One that was in hand whenever a process was lost is given up, whatever it is: it looks like a deadly one.
    well = fate.kind in ENDS_WELL and fate.crashes < LIMIT
    dead = State.CANCELLED if crossing else State.DEAD
    if fate.state != (State.DONE if well else dead):
        yield f"{fate} has ended otherwise"
    if fate.letters != (0 if well else 1):
        yield f"{fate} has {fate.letters} letters"
    if len(fate.replies) != (0 if fate.kind in SILENT else 1):
        yield f"{fate} was answered {len(fate.replies)} times"
    if any(bool(text) == well for text in fate.replies):
        yield f"{fate} was answered otherwise than it ended"
    # Begun once more than it may be only where a process was lost; and a deadly one not once too often.
    allowed = {"good": 1, "flaky": 2, "failing": LIMIT, "barred": 1}.get(fate.kind, 0)
    if fate.runs > allowed + fate.lost or (fate.kind == "deadly" and fate.runs > LIMIT):
        yield f"{fate} was begun too often"


def decoded(text: str) -> Report:
    return msgspec.json.decode(text, type=Report)
