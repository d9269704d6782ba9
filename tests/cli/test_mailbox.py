"""`redrive mailbox …`: send, look, receive and purge, on real stores."""

import json
import re
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from redrive.mailboxes import open_mailbox
from redrive.mailboxes.boxes.message import StoreMessage
from tests.mailboxes.ends import dead_letter
from tests.support.cli import here, made_in

pytestmark = pytest.mark.usefixtures("on_store")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_what_is_sent_is_received_and_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_mailbox("requests", made_in(tmp_path)) as box:
        box.send({"n": 0})
    sent = here(capsys, "mailbox", "send", "requests", '{"n": 1}', "--attribute", "tenant=a", "--reply-to", "answers")
    assert (sent.code, sent.err) == (Exit.DONE, "")
    key = sent.out.strip()
    lines = here(capsys, "mailbox", "send", "requests", "-", "--lines", "--priority", "low", text='"a"\n\n"b"\n')
    assert len(lines.out.split()) == 2
    assert here(capsys, "mailbox", "list").out.split("\t")[:4] == ["requests", "4", "0", "0"]
    seen = here(capsys, "mailbox", "receive", "requests", "--max", "2")
    assert [json.loads(line)["body"] for line in seen.out.splitlines()] == [{"n": 0}, {"n": 1}]
    again = here(capsys, "mailbox", "receive", "requests", "--max", "10", "--acknowledge")
    messages = [json.loads(line) for line in again.out.splitlines()]
    assert [message["body"] for message in messages] == [{"n": 0}, {"n": 1}, "a", "b"]
    assert messages[1]["id"] == key
    assert (messages[1]["attributes"], messages[1]["reply_to"]) == ({"tenant": "a"}, "answers")
    assert messages[1]["delivery_count"] == 1, "to look costs no delivery"
    assert TIME.fullmatch(messages[1]["enqueued_at"])
    empty = here(capsys, "mailbox", "receive", "requests")
    assert (empty.code, empty.out, empty.err) == (Exit.DONE, "", "nothing to receive\n")


def test_the_body_of_a_message_is_shown_and_the_envelope_with_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_mailbox("requests", made_in(tmp_path)) as box:
        box.send({"n": 0})
    key = here(capsys, "mailbox", "send", "requests", '{"n": 1}', "--reply-to", "answers").out.strip()
    assert json.loads(here(capsys, "letters", "payload", key).out) == {"n": 1}
    assert json.loads(here(capsys, "item", "show", key, "--json").out)["payload"] == {"n": 1}
    raw = json.loads(here(capsys, "letters", "payload", key, "--raw").out)
    assert raw == {"redrive.mailbox": 1, "body": {"n": 1}, "reply_to": "answers"}


def test_letters_are_shown_and_purged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = made_in(tmp_path)
    with open_mailbox("requests", url) as box, open_mailbox("dead", url, dead_letters=True) as dead:
        assert dead.receive() == []
        box.send({"n": 1})
        box.send({"n": 2})
        [message] = box.receive()
        assert isinstance(message, StoreMessage)
        assert dead_letter(message, route="dead", reason="test", error=ValueError("no")) == "dead"
        assert dead.approximate_count() == 1
    shown = json.loads(here(capsys, "mailbox", "show", "dead", "--json").out)
    assert (shown["mailbox"], shown["waiting"], shown["dead_letters"]) == ("dead", 0, 1)
    assert "dead letters\t1\n" in here(capsys, "mailbox", "show", "dead").out
    letter = json.loads(here(capsys, "mailbox", "receive", "dead").out)["body"]
    assert (letter["body"], letter["source_mailbox"]) == ({"n": 1}, "requests")
    times = [letter["dead_lettered_at"], letter["first_enqueued_at"], letter["attempts"][0]["started_at"]]
    assert all(TIME.fullmatch(each) for each in times), times
    unsaid = here(capsys, "mailbox", "purge", "dead", "--yes")
    assert (unsaid.code, "--reason" in unsaid.err) == (Exit.USAGE, True)
    refused = here(capsys, "mailbox", "purge", "dead", "--reason", "too old")
    assert (refused.code, "1 message would be cancelled or moved to the trash" in refused.err) == (Exit.REFUSED, True)
    monkeypatch.setenv("REDRIVE_ACTOR", "ann")
    assert here(capsys, "mailbox", "purge", "dead", "--yes", "--reason", "too old").out == "1\n"
    assert here(capsys, "mailbox", "purge", "requests", "--yes", "--reason", "by mistake").out == "1\n"
    audit = json.loads(here(capsys, "audit", "list", "--json").out)
    assert sorted((each["actor"], each["reason"]) for each in audit) == [("ann", "by mistake"), ("ann", "too old")]
    rows = json.loads(here(capsys, "mailbox", "list", "--json").out)
    assert [row["waiting"] + row["dead_letters"] for row in rows] == [0, 0]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("show", "request"), Exit.NOT_FOUND, "did you mean 'requests'"),
        (("send", "request", "1"), Exit.NOT_FOUND, "did you mean 'requests'"),
        (("send", "requests", "{"), Exit.USAGE, "BODY: it is not JSON"),
        (("send", "requests", "1", "--attribute", "x"), Exit.USAGE, "--attribute: 'x' has no name"),
        (("send", "requests", "1", "--in", "soon"), Exit.USAGE, "--in: 'soon'"),
        (("send", "requests", "1", "--priority", "urgent"), Exit.USAGE, "urgent"),
        (("receive", "requests", "--max", "11"), Exit.USAGE, "--max"),
        (("receive", "requests", "--wait", "30s"), Exit.USAGE, "--wait: must be at most 20s, got '30s'"),
        (("send", "other", "1"), Exit.NOT_FOUND, "no mailbox 'other' (say --new"),
        (("send", "a b", "1", "--new"), Exit.USAGE, "MAILBOX: must be the name of a mailbox, got 'a b'"),
        (("send", "redrive.outbox.z", "1", "--new"), Exit.USAGE, "MAILBOX: 'redrive.outbox.z' is the outbox queue of"),
        (("send", "requests", "1", "--reply-to", ""), Exit.USAGE, "--reply-to: must be the name of a mailbox, got ''"),
        (("send", "requests", "NaN"), Exit.USAGE, "BODY: body is NaN or infinite, which JSON cannot say (JSON has no"),
        (("send", "requests", '"\\ud800"'), Exit.USAGE, "BODY: body cannot be written as JSON"),
        (("send", "requests", "1", "--lines"), Exit.USAGE, "--lines reads stdin; give - as the body"),
    ],
)
def test_bad_input_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: Exit, said: str
) -> None:
    with open_mailbox("requests", made_in(tmp_path)) as box:
        box.send(1)
    told = here(capsys, "mailbox", *args)
    assert (told.code, told.out) == (code, "")
    assert said in told.err
    assert here(capsys, "mailbox", "send", "fresh", "1", "--new").code == Exit.DONE


@pytest.mark.parametrize(
    ("wrong", "said"), [("x", "it is not JSON: column 1: Expecting value"), ("NaN", "body is NaN or infinite")]
)
def test_a_bad_line_is_named_and_nothing_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, said: str
) -> None:
    with open_mailbox("requests", made_in(tmp_path)) as box:
        box.approximate_count()
    told = here(capsys, "mailbox", "send", "requests", "-", "--lines", text=f"1\n\n{wrong}\n")
    assert told.code == Exit.USAGE
    assert f"redrive: line 3: {said}" in told.err
    assert here(capsys, "mailbox", "receive", "requests").out == ""
