"""The text of a failed assertion: what was expected, what comes closest, and what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches

from redrive.core import durations
from redrive.core.item import Instant, Item, short_id
from redrive.core.quantity import cut
from redrive.core.states import Disposition, State
from redrive.testing._expect import Expectation, payload_of, result_of

LISTED = 20
WIDTH = 160
CANDIDATES = 200
COMPARED = 2000
"""Characters of a payload that are compared to find the closest."""


def failed(
    name: str,
    expectation: Expectation,
    count: int | None,
    *,
    found: Sequence[Item],
    there: Sequence[Item],
    queues: Iterable[str],
    now: Instant,
) -> str:
    wanted = "at least 1 item" if count is None else _items(count)
    lines = [f"{name}: expected {wanted}, found {len(found) or 'none'}", *_wanted(expectation)]
    if found:
        return "\n".join([*lines, "", "found:", *_list(found, now)])
    lines += _unknown_queue(expectation.queue, queues)
    nearest = _closest(expectation, there)
    if nearest is not None:
        where = f"closest: item {short_id(nearest.id)} of queue {nearest.queue}"
        lines += ["", where, *_differences(expectation, nearest)]
    if not there:
        return "\n".join([*lines, "", "the store is empty"])
    return "\n".join([*lines, "", f"{_items(len(there))} in the store:", *_list(there, now)])


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _wanted(expectation: Expectation) -> list[str]:
    traits = list(expectation.all_traits())
    width = max(len(trait.name) for trait in traits)
    return [f"  {trait.name:<{width}}  {_short(trait.wanted)}" for trait in traits]


def _unknown_queue(queue: str | None, known: Iterable[str]) -> list[str]:
    names = set(known)
    if queue is None or queue in names:
        return []
    near = get_close_matches(queue, sorted(names), n=1)
    return ["", f"there is no queue {queue!r}" + (f"; did you mean {near[0]!r}?" if near else "")]


def _closest(expectation: Expectation, there: Sequence[Item]) -> Item | None:
    """The one that misses the fewest traits; of several, the one whose payload looks most alike."""
    traits = list(expectation.all_traits())
    met = {item.id: sum(trait.holds(item) for trait in traits) for item in there}
    best = max(met.values(), default=0)
    if best == 0:
        return None
    payloads = [trait.wanted[:COMPARED] for trait in traits if trait.name.startswith("payload")]
    nearest = [item for item in there if met[item.id] == best][-CANDIDATES:]
    return max(nearest, key=lambda item: _likeness(payloads, payload_of(item)[:COMPARED]))


def _likeness(wanted: list[str], payload: str) -> float:
    return sum(SequenceMatcher(None, text, payload).ratio() for text in wanted)


def _differences(expectation: Expectation, item: Item) -> list[str]:
    missed = [trait for trait in expectation.all_traits() if not trait.holds(item)]
    width = max((len(trait.name) for trait in missed), default=0)
    lines = []
    for trait in missed:
        wanted, found = _short(trait.wanted), _short(trait.found(item))
        lines += [f"- {trait.name:<{width}}  {wanted}", f"+ {trait.name:<{width}}  {found}"]
    return lines


def _list(items: Sequence[Item], now: Instant) -> list[str]:
    """The last ones: a test has most likely just put them there."""
    shown = items[-LISTED:]
    rows = [(str(item.state), item.queue, short_id(item.id), payload_of(item), _fate(item, now)) for item in shown]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"  … and {len(items) - len(shown)} before these"] if len(shown) < len(items) else []
    for *head, payload, fate in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(head, widths, strict=True)]
        lines.append(f"  {'  '.join([*cells, _short(payload)])}{f'  ({fate})' if fate else ''}")
    return lines


def _fate(item: Item, now: Instant) -> str:
    if item.letter is not None:
        away = "" if item.letter.disposition is Disposition.OPEN else f", {item.letter.disposition}"
        return _short(f"{item.letter.reason}: {item.letter.failure.type}: {item.letter.failure.text}{away}")
    if item.state is State.DONE:
        return "" if item.result is None else f"result {_short(result_of(item))}"
    words = []
    if item.state is State.READY and item.due_at > now:
        words.append(f"due in {durations.format(item.due_at - now)}")
    if item.errors:
        words.append(f"{item.errors} error{'s' * (item.errors > 1)}")
    return ", ".join(words)


def _short(text: str) -> str:
    return cut(text.replace("\n", " "), WIDTH)
