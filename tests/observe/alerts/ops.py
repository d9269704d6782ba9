"""What alert tests share: a channel that keeps what it gets, and letters to alert about."""

from __future__ import annotations

from typing import Any

from redrive import Dead, Redrive
from redrive.observe.alerts import Condition, Message, callback
from tests.support.lab import Lab


class Ops:
    """The channel `ops` of an app. `broken`: it takes nothing."""

    def __init__(self, app: Redrive, name: str = "ops", **options: Any) -> None:
        self.app = app
        self.messages: list[Message] = []
        self.broken = False
        app.alerts.channel(name, callback(self.take), **options)

    async def take(self, message: Message) -> None:
        if self.broken:
            raise ConnectionError("no answer")
        self.messages.append(message)

    @property
    def lines(self) -> list[str]:
        """Of all messages so far; afterwards there are none."""
        messages, self.messages = self.messages, []
        return [line for message in messages for line in message.text().split("\n")]

    async def told(self, lab: Lab) -> list[str]:
        """What a round of evaluation tells."""
        await self.app.alerts.evaluate()
        await lab.drain(self.app)
        return self.lines


def rule(app: Redrive, when: Condition, **options: Any) -> None:
    app.alerts.rule("rule", when, **{"to": "ops", **options})


def dying(app: Redrive, queue: str = "emails") -> None:
    """Items of the queue die, each with the error that is its payload."""

    @app.handler(queue)
    async def handle(text: str) -> None:
        raise Dead(text) from ValueError(text)


async def letters(lab: Lab, app: Redrive, *texts: str, queue: str = "emails") -> list[str]:
    ids = [str(await app.enqueue(queue, text)) for text in texts]
    await lab.drain(app)
    return ids
