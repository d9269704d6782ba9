"""What is asked for, which way each letter is to go, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from redrive.core.item import NewItem
from redrive.core.verbs import Act, Skipped
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import Place
from redrive.mailboxes.letters.resending import Candidate, Resending

P = ParamSpec("P")
A = TypeVar("A")


@dataclass
class Order:
    """What is asked for. `plain`: nothing of the letter changes. `held`: whoever asks has it in hand."""

    dead_letters: StoreMailbox[Any, Any]
    resending: Resending
    act: Act
    target: Callable[[Candidate], Mailbox[Any, Any]]
    dedupe: bool
    plain: bool
    held: bool = False

    @property
    def place(self) -> Place:
        return self.dead_letters._place

    def call(self, method: Callable[P, Coroutine[Any, Any, A]], *args: P.args, **kwargs: P.kwargs) -> A:
        return self.dead_letters._call(method, *args, **kwargs)


@dataclass
class Found:
    """What became of them so far: with each that is on its way, the mailbox and the id of the message; with each of
    which another was before, the mailbox and why.

    `unsent`: letters of which nothing can have arrived anywhere, so that they must not keep others of their request.
    """

    done: list[tuple[Candidate, str, str]] = field(default_factory=list)
    duplicates: list[tuple[Candidate, str, str]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    kept: list[Skipped] = field(default_factory=list)
    unsent: set[str] = field(default_factory=set)

    def skip(self, those: Iterable[Skipped]) -> None:
        for each in those:
            self.skipped.append(each)
            self.unsent.add(each.id)

    def keep(self, letter: Candidate, why: str, error: Exception) -> None:
        self.kept.append(Skipped(letter.id, f"{why}: {logs.type_of(error)}: {logs.said(error)}"))

    def twice(self, letter: Candidate, other: str, target: Mailbox[Any, Any], pending: str = "") -> None:
        """`pending`: after which it may go in the other's place, if that is still a letter then."""
        said = f"{other}, of the same request, was replayed to {target.name}, or is about to be"
        if pending:
            said = (
                f"{other}, of the same request, is about to be replayed to {target.name}, or whoever wanted that has "
                f"died: replay that one; or this one in {pending}, or with dedupe=False"
            )
        self.duplicates.append((letter, target.name, said))


@dataclass
class Itself:
    """It goes back as what it is."""

    letter: Candidate
    target: StoreMailbox[Any, Any]


@dataclass
class Message:
    """It becomes another message of a store."""

    letter: Candidate
    target: StoreMailbox[Any, Any]
    item: NewItem


@dataclass
class Body:
    """It becomes whatever somebody else's mailbox makes of it."""

    letter: Candidate
    target: Mailbox[Any, Any]
    body: object


Plan = Itself | Message | Body


def leaves(order: Order, plan: Plan) -> bool:
    """For another store of ours."""
    return isinstance(plan, Message) and plan.target._place is not order.place
