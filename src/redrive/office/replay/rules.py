"""Rules of automatic replay: which letters, how long after their death, and how often at most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.filters import parse
from redrive.core.item import Instant, Item, Millis
from redrive.core.select import Selection, matches
from redrive.core.validation import check_count, check_errors
from redrive.office.replay.resend import Candidate


@dataclass(frozen=True)
class Rule:
    """A letter must fit `where`, a filter or a predicate of the door, and `errors`, exception classes or their names.

    `max_replays` counts all replays of the letter.
    """

    where: str | Callable[[Any], object] | None = None
    errors: Collection[type[BaseException] | str] | None = None
    after: Duration = "10m"
    max_replays: int = 3

    def check(self) -> None:
        """Raises InvalidParameterError."""
        check_count(self.max_replays, field="max_replays")
        check_errors(self.errors, field="errors", names=True)

    @cached_property
    def delay(self) -> Millis:
        return durations.parse(self.after, field="after")

    @cached_property
    def selection(self) -> Selection | None:
        return parse(self.where) if isinstance(self.where, str) and self.where.strip() else None

    def fits(self, letter: Candidate, now: Instant) -> bool:
        """Raises what the predicate raises."""
        if self.selection is not None and not matches(self.selection, letter.item, now):
            return False
        if self.errors is not None and not any(_error_type(letter.item) in _names(each) for each in self.errors):
            return False
        return not callable(self.where) or bool(self.where(letter.subject))


def rule_for(rules: Sequence[Rule], letter: Candidate, now: Instant) -> tuple[int | None, bool]:
    """The index of the first rule that fits, and whether the letter is due by it. None: no rule will ever replay it."""
    number = next((at for at, rule in enumerate(rules) if rule.fits(letter, now)), None)
    died = letter.item.letter
    if number is None or died is None or letter.replays >= rules[number].max_replays:
        return None, False
    return number, now - died.died_at >= rules[number].delay


def _error_type(item: Item) -> str:
    kind = "" if item.letter is None else item.letter.failure.type
    return kind if "." in kind else f"builtins.{kind}"


def _names(error: type[BaseException] | str) -> set[str]:
    """A letter has the name of its error: those of the class and of its subclasses in this process."""
    if isinstance(error, str):
        return {error if "." in error else f"builtins.{error}"}
    names, found = set[str](), [error]
    while found:
        kind = found.pop()
        names.add(f"{kind.__module__}.{kind.__qualname__}")
        found += kind.__subclasses__()
    return names
