"""A main loop with its mailboxes, for tests of what becomes of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redrive.core.acts import Act, Replay
from redrive.core.item import Letter
from redrive.core.select import Ids, Match
from redrive.mailboxes import DLQPolicy, MainLoop, MainLoopRequest, MainLoopResult, StoreMailbox
from redrive.mailboxes.metrics import MailboxMetrics
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Opener


@dataclass(frozen=True)
class Ask:
    text: str
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    text: str


class Adapter:
    """Answers, or raises what it was told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.asked: list[Ask] = []

    def evaluate(self, prompt: Ask) -> Told:
        self.asked.append(prompt)
        if self.error is not None:
            raise self.error
        return Told(f"{prompt.text}!")


class Loop(MainLoop[Ask, Told]):
    pass


class Bench:
    """A loop with its mailboxes, on one store."""

    def __init__(self, opened: Opener, clock: FakeClock, **policy: Any) -> None:
        self.clock = clock
        self.adapter = Adapter(ValueError("no such city"))
        self.metrics = MailboxMetrics()
        self.requests = opened("requests")
        self.letters = opened("requests-dlq")
        self.replies = opened("replies", body_type=MainLoopResult[Told])
        self.loop = self.another(dlq=DLQPolicy(self.letters, **policy))

    def another(self, **options: Any) -> Loop:
        return Loop(adapter=self.adapter, requests=self.requests, metrics=self.metrics, **options)

    def send(self, text: str = "why", **options: Any) -> MainLoopRequest[Ask]:
        request = MainLoopRequest(Ask(text), **options)
        self.requests.send(request, reply_to=self.replies)
        return request

    def run(self, rounds: int = 1) -> None:
        self.loop.run(max_iterations=rounds, wait_time_seconds=0)

    def answers(self) -> list[MainLoopResult[Told]]:
        got = self.replies.receive(max_messages=10)
        for message in got:
            message.acknowledge()
        return [message.body for message in got]

    @property
    def counts(self) -> tuple[int, int]:
        return self.requests.approximate_count(), self.letters.approximate_count()


def lose(mailbox: StoreMailbox[Any, Any], clock: FakeClock) -> None:
    """Received by somebody who is never heard of again."""
    assert len(mailbox.receive(visibility_timeout=30)) == 1
    clock.advance("30s")


def replay(bench: Bench, key: str) -> None:
    place = bench.requests.shared
    act = Act("operator", "mended", "replay-1")
    assert place.call(place.store.amend, Ids((key,)), Replay(), act).changed == (key,)


def letters_of(bench: Bench) -> list[Letter]:
    place = bench.requests.shared
    found = place.call(place.store.find, Match("state", "=", "dead"))
    return [item.letter for item in found if item.letter is not None]
