"""`redrive mailbox …`: send, look, receive and purge, on real stores."""

import json
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from redrive.mailboxes import open_mailbox
from redrive.mailboxes.boxes.message import StoreMessage
from tests.mailboxes.ends import dead_letter
from tests.support.cli import here, made_in

pytestmark = pytest.mark.usefixtures("on_store")


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


def test_letters_are_shown_and_purged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    refused = here(capsys, "mailbox", "purge", "dead")
    assert (refused.code, "1 message would be cancelled or moved to the trash" in refused.err) == (Exit.REFUSED, True)
    assert here(capsys, "mailbox", "purge", "dead", "--yes").out == "1\n"
    assert here(capsys, "mailbox", "purge", "requests", "--yes").out == "1\n"
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
