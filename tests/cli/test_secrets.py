"""S14: fifty secrets, each another one in another place, and none of them in what is logged, told or shown."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from tests.core.test_redact import CANARY, SECRETS
from tests.support.cli import here, on_sqlite, store_in

pytestmark = [pytest.mark.usefixtures("on_store"), on_sqlite]
PAYLOADS: list[Any] = [
    {"password": CANARY},
    {"user": {"passwd": CANARY}},
    {"users": [{"name": "bob"}, {"secret": CANARY}]},
    {"api_key": CANARY},
    {"apiKey": CANARY},
    {"x-api-key": CANARY},
    {"access_token": CANARY},
    {"refresh_token": CANARY},
    {"client_secret": CANARY},
    {"private_key": CANARY},
    {"authorization": CANARY},
    {"headers": {"Authorization": f"Bearer {CANARY}"}},
    {"headers": {"Cookie": f"session={CANARY}"}},
    {"dsn": f"postgresql://bob:{CANARY}@db/shop"},
    {"callback": f"https://x.org/?token={CANARY}"},
    {"env": {"DB_PASSWORD": CANARY}},
    {"text": f"use password={CANARY} to sign in"},
]
NOTES = [
    f"the key is api_key={CANARY}",
    f"redis://:{CANARY}@host/0",
    f"Authorization: Bearer {CANARY}",
    f"pw: passwd={CANARY}",
]
REASONS = [
    f"rotated password={CANARY}",
    f"https://x.org/?access_token={CANARY}",
    f"secret={CANARY}",
    f"ghp_{CANARY}{CANARY}",
]


def canaries() -> Iterator[str]:
    """No two alike, and none a part of another."""
    for number in range(1000):
        yield f"hunter{number:03}hunter"


class Placed:
    """The table with a canary of its own in each place."""

    def __init__(self) -> None:
        new = canaries()
        self.all: list[str] = []

        def one(place: Any) -> Any:
            self.all.append(next(new))
            return json.loads(json.dumps(place).replace(CANARY, self.all[-1]))

        self.errors = [str(one(text)) for text in SECRETS]
        self.payloads = [one(payload) for payload in PAYLOADS]
        self.notes = [str(one(text)) for text in NOTES]
        self.reasons = [str(one(text)) for text in REASONS]

    def in_(self, text: str) -> list[str]:
        return [canary for canary in self.all if canary in text]


def died(folder: Path, placed: Placed) -> tuple[list[str], list[object]]:
    """A letter for each error and each payload; and the events of their deaths."""

    async def run() -> tuple[list[str], list[object]]:
        app = Redrive(store_in(folder), actor="tester")
        events: list[object] = []
        app.events.subscribe(events.append)

        @app.handler("mail", policy=Policy(never()))
        async def fail(number: int, payload: Any = None) -> None:
            raise ValueError(placed.errors[number] if payload is None else "no such mailbox")

        async with app:
            work = [{"number": number} for number in range(len(placed.errors))]
            work += [{"number": 0, "payload": each} for each in placed.payloads]
            ids = [str(made) for made in await app.enqueue_many("mail", work)]
            await app.run(until_idle=True)
            return ids, events

    return asyncio.run(run())


@pytest.mark.slow
def test_s14_fifty_secrets_are_nowhere_to_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    placed = Placed()
    assert len(set(placed.all)) == 50
    caplog.set_level(logging.DEBUG)
    ids, events = died(tmp_path, placed)
    said = [
        (text, getattr(record, "redrive", None)) for record, text in zip(caplog.records, caplog.messages, strict=True)
    ]
    assert len(said) >= len(ids)
    assert placed.in_(repr(said)) == []
    assert len(events) >= len(ids)
    assert placed.in_(repr(events)) == []
    for note, reason in zip(placed.notes, placed.reasons, strict=True):
        assert here(capsys, "letters", "note", ids[0], "--text", note).code == Exit.DONE
        assert here(capsys, "letters", "tag", ids[0], "--add", "vip", "--reason", reason).code in (
            Exit.DONE,
            Exit.CONFLICT,
        )
    causes = here(capsys, "causes", "list", "--limit", "1000", "-q").out.split()
    looks = [
        *[["letters", "list", *more] for more in ([], ["--json"], ["--jsonl"], ["--by", "cause"], ["--wide"])],
        *[[noun, "list", "--json"] for noun in ("item", "causes", "audit")],
        *[[noun, "list"] for noun in ("item", "causes", "audit")],
        ["status"],
        ["status", "--json"],
        ["letters", "export", "x.csv", "--csv"],
        *[["causes", "show", cause] for cause in causes],
        *[["letters", "show", each, *more] for each in ids for more in ([], ["--json"])],
        *[["item", "explain", each] for each in ids[: len(placed.errors)]],
        *[["item", "attempts", each, "--json"] for each in ids[: len(placed.errors)]],
        *[["letters", "payload", each] for each in ids[len(placed.errors) :]],
    ]
    for look in looks:
        told = here(capsys, *look)
        assert told.code == Exit.DONE, look
        assert placed.in_(told.out + told.err) == [], look
    assert placed.in_((tmp_path / "x.csv").read_text()) == []
    # They were there: whoever asks for everything gets all that letters hold.
    here(capsys, "letters", "export", "x.jsonl")
    whole = (tmp_path / "x.jsonl").read_text()
    assert len(placed.in_(whole)) == len(placed.errors) + len(placed.payloads)
