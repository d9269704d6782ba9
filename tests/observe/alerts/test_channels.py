"""Each channel against a local receiver, on a real socket: what it sends, and what it makes of answers."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from email import message_from_string
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.item import Item
from redrive.core.states import State
from redrive.engine.outbox import Undeliverable
from redrive.engine.signals import Retry
from redrive.errors import NotificationFailed
from redrive.observe.alerts import (
    Channel,
    Message,
    Notice,
    callback,
    channels,
    command,
    email,
    opsgenie,
    pagerduty,
    slack,
    telegram,
    webhook,
)
from redrive.observe.alerts.book import deliver
from redrive.observe.alerts.channels import ALONE, CHANNELS, send
from tests.support.listening import HOST, listening
from tests.support.receivers import SmtpReceiver, http_receiver, smtp_receiver

AT = 1_767_225_600_000
SECRET = "T000/B000/xoxsecret"  # noqa: S105 - nobody's
OLD = Notice("firing", "k1", "old-letters", "emails", "error", "queue <emails> & more", ("emails",), AT, AT + 60_000)
OVER = OLD.over(AT + 120_000)
BOTH = Message("m1", AT + 120_000, (OLD, OVER))
TEXT = "FIRING error old-letters: queue <emails> & more\nRESOLVED error old-letters: queue <emails> & more (after 2m)"
ESCAPED = TEXT.replace("<emails> &", "&lt;emails&gt; &amp;")


async def test_slack_gets_one_text_escaped() -> None:
    async with http_receiver() as there:
        assert await send(slack(f"{there.url}/services/{SECRET}"), BOTH) == "200 ok"
    (request,) = there.requests
    assert (request.path, request.headers["content-type"]) == (f"/services/{SECRET}", "application/json")
    assert request.json == {"text": ESCAPED}


async def test_a_webhook_gets_the_whole_message_under_its_id() -> None:
    async with http_receiver() as there:
        await send(webhook(f"{there.url}/in?q=1"), Message("m1", AT, (OLD,), more=7))
    (request,) = there.requests
    assert (request.path, request.headers["idempotency-key"]) == ("/in?q=1", "m1")
    assert request.json == {
        "id": "m1",
        "at": "2026-01-01T00:00:00.000Z",
        "text": "FIRING error old-letters: queue <emails> & more\nand 7 more",
        "alerts": [
            {
                "status": "firing",
                "key": "k1",
                "rule": "old-letters",
                "subject": "emails",
                "severity": "error",
                "text": "queue <emails> & more",
                "queues": ["emails"],
                "since": "2026-01-01T00:00:00.000Z",
                "at": "2026-01-01T00:01:00.000Z",
                "repeated": 0,
            }
        ],
        "more": 7,
    }


async def test_telegram_gets_html_within_its_limit() -> None:
    async with http_receiver() as there:
        channel = telegram("123:abc", -100, there.url)
        await send(channel, BOTH)
        await send(channel, Message("m2", AT, tuple([OLD] * 200)))
        await send(channel, Message("m3", AT, tuple([replace(OLD, text="\N{POLICE CARS REVOLVING LIGHT}" * 150)] * 20)))
    first, second, third = there.requests
    assert first.path == "/bot123:abc/sendMessage"
    assert first.json == {
        "chat_id": "-100",
        "text": ESCAPED,
        "parse_mode": "HTML",
        "link_preview_options": {"is_disabled": True},
    }
    lines = second.json["text"].split("\n")
    assert len(second.json["text"]) <= 4096
    assert lines[-1] == f"and {200 - len(lines) + 1} more"
    units = len(third.json["text"].encode("utf-16-le")) // 2
    assert 3500 < units <= 4096


async def test_pagerduty_triggers_and_resolves_by_the_same_key() -> None:
    async with http_receiver() as there:
        there.answer(202, '{"status": "success"}')
        there.answer(202, '{"status": "success"}')
        said = await send(pagerduty("R0UT1NGK3Y", f"{there.url}/v2/enqueue"), BOTH)
    assert said == '202 {"status": "success"}; 202 {"status": "success"}'
    trigger, resolve = there.requests
    assert trigger.path == resolve.path == "/v2/enqueue"
    assert trigger.json == {
        "routing_key": "R0UT1NGK3Y",
        "dedup_key": "k1",
        "event_action": "trigger",
        "payload": {
            "summary": "old-letters: queue <emails> & more",
            "source": "emails",
            "severity": "error",
            "timestamp": "2026-01-01T00:01:00.000Z",
            "component": "redrive",
            "class": "old-letters",
            "custom_details": {
                "subject": "emails",
                "text": "queue <emails> & more",
                "queues": ["emails"],
                "since": "2026-01-01T00:00:00.000Z",
                "repeated": 0,
            },
        },
    }
    assert resolve.json == {"routing_key": "R0UT1NGK3Y", "dedup_key": "k1", "event_action": "resolve"}


async def test_opsgenie_creates_an_alert_and_closes_it_by_its_alias() -> None:
    async with http_receiver() as there:
        there.answer(202)
        there.answer(202)
        await send(opsgenie("g3n13", f"{there.url}/v2/alerts"), BOTH)
    create, close = there.requests
    assert [each.headers["authorization"] for each in there.requests] == ["GenieKey g3n13"] * 2
    assert (create.path, close.path) == ("/v2/alerts", "/v2/alerts/k1/close?identifierType=alias")
    assert create.json == {
        "message": "old-letters: queue <emails> & more",
        "alias": "k1",
        "description": "queue <emails> & more",
        "priority": "P2",
        "source": "redrive",
        "entity": "emails",
        "tags": ["redrive", "old-letters"],
        "details": {"queues": "emails", "since": "2026-01-01T00:00:00.000Z", "severity": "error"},
    }
    assert close.json == {
        "source": "redrive",
        "note": "RESOLVED error old-letters: queue <emails> & more (after 2m)",
    }
    assert {"pagerduty", "opsgenie"} == ALONE


async def test_long_texts_fit_the_limits_of_each() -> None:
    long = Notice("firing", "k1", "r" * 128, "s" * 1000, "critical", "x" * 5000, (), AT, AT)
    async with http_receiver() as there:
        await send(pagerduty("R0UT1NGK3Y", there.url), Message("m", AT, (long,), more=1007))
        await send(opsgenie("g3n13", there.url), Message("m", AT, (long,), more=1007))
    event, alert = (request.json for request in there.requests)
    details = event["payload"]["custom_details"], alert["details"]
    assert [each["left_out"] for each in details] == ["1,007 more alerts"] * 2
    assert (len(event["payload"]["summary"]), event["payload"]["source"]) == (1024, "redrive")
    assert (len(alert["message"]), len(alert["entity"]), len(alert["tags"][1])) == (130, 512, 50)


# -- mail ------------------------------------------------------------------------------------------------------------


async def test_mail_is_sent_in_plain_text_with_an_id_that_stays() -> None:
    async with smtp_receiver(SmtpReceiver()) as there:
        channel = email(
            HOST, "redrive@example.com", ["ops@example.com", "dev@example.com"], port=there.port, tls="none"
        )
        assert await send(channel, BOTH) == "accepted"
    assert there.recipients == ["<ops@example.com>", "<dev@example.com>"]
    mail = message_from_string(there.mails[0], policy=default)
    assert (mail["Subject"], mail["From"], mail["To"], mail["Message-ID"], mail["Date"]) == (
        "[redrive] 2 alerts",
        "redrive@example.com",
        "ops@example.com, dev@example.com",
        "<m1@example.com>",
        "Thu, 01 Jan 2026 00:02:00 -0000",
    )
    assert mail.get_content().replace("\r\n", "\n").rstrip("\n") == TEXT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    path, key = folder / "cert.pem", folder / "key.pem"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(path), "-days", "2", "-subj", "/CN=smtp"]
    subprocess.run([*new, *files, "-addext", f"subjectAltName=IP:{HOST}"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return path, context


@pytest.mark.slow
async def test_a_login_goes_through_starttls_only_with_a_certificate_that_is_trusted(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = certificate
    async with smtp_receiver(SmtpReceiver(context, login=("ann", "hunter2"))) as there:
        channel = email(HOST, "a@example.com", "b@example.com", port=there.port, user="ann", password="hunter2")  # noqa: S106
        with pytest.raises(NotificationFailed, match=r"email failed: SSLCertVerificationError"):
            await send(channel, BOTH)
        assert there.logins == []
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        there.encrypted = False
        assert await send(channel, BOTH) == "accepted"
    assert (there.encrypted, there.logins, len(there.mails)) == (True, [("ann", "hunter2")], 1)


@pytest.mark.slow
async def test_mail_is_encrypted_from_the_first_byte_for_the_name_in_the_certificate(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with smtp_receiver(SmtpReceiver(context, login=("ann", "hunter2"), encrypted=True)) as there:
        options: dict[str, Any] = {"port": there.port, "tls": "tls", "user": "ann", "password": "hunter2"}
        assert await send(email(HOST, "a@example.com", "b@example.com", **options), BOTH) == "accepted"
        with pytest.raises(NotificationFailed, match=r"email failed: SSLCertVerificationError"):
            await send(email("localhost", "a@example.com", "b@example.com", **options), BOTH)
    assert (there.logins, len(there.mails)) == ([("ann", "hunter2")], 1)


async def test_a_mail_server_that_never_ends_an_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"220-wait\r\n" * 1000)
            await writer.drain()

    monkeypatch.setattr(channels, "WITHIN", 100)
    async with listening(talk) as port, asyncio.timeout(60):
        with pytest.raises(NotificationFailed, match=r"email took longer than 0\.1 s"):
            await send(email(HOST, "a@example.com", "b@example.com", port=port, tls="none"), BOTH)


async def test_a_mail_server_that_is_busy_has_taken_nothing() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"421 come back later\r\n")
        await writer.drain()

    async with listening(talk) as port:
        with pytest.raises(NotificationFailed, match="email was refused: 421 come back later"):
            await send(email(HOST, "a@example.com", "b@example.com", port=port, tls="none"), BOTH)


async def test_what_the_mail_server_refuses_is_told_without_the_password() -> None:
    async with smtp_receiver(SmtpReceiver(refuse="554 hunter2 smells of spam")) as there:
        channel = email(HOST, "a@example.com", "b@example.com", port=there.port, tls="none", password="hunter2")  # noqa: S106
        with pytest.raises(NotificationFailed, match=r"email was refused: 554 \[redacted\] smells of spam"):
            await send(channel, BOTH)


# -- programs and functions ------------------------------------------------------------------------------------------

SCRIPT = """
import json, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(json.dumps(json.load(sys.stdin)))
print("not heard")
sys.stderr.write("no paper" if len(sys.argv) > 2 else "")
sys.exit(len(sys.argv) - 2)
"""


@pytest.mark.slow
async def test_a_command_gets_json_and_tells_by_its_exit_code(tmp_path: Path) -> None:
    got = tmp_path / "got; rm -rf"  # no shell reads it
    argv = [sys.executable, "-c", SCRIPT, str(got)]
    assert await send(command(argv), BOTH) == "exit 0"
    assert json.loads(got.read_text()) == BOTH.as_object()
    with pytest.raises(NotificationFailed, match=r"exited with 1: no paper"):
        await send(command([*argv, "x"]), BOTH)
    with pytest.raises(NotificationFailed, match="command failed: FileNotFoundError"):
        await send(command(["/no/such/program"]), BOTH)


@pytest.mark.slow
async def test_a_command_that_hangs_is_killed_with_what_it_started() -> None:
    with pytest.raises(NotificationFailed, match=r"took longer than 0\.05 s"):
        await send(command(["/bin/sh", "-c", "sleep 1000 & wait"], timeout="50ms"), BOTH)


async def test_a_callback_may_be_async_or_not() -> None:
    got: list[Message] = []

    async def later(message: Message) -> None:
        got.append(message)

    def fails(message: Message) -> None:
        raise ValueError("password=hunter2")

    assert [await send(callback(each), BOTH) for each in (later, got.append)] == ["called"] * 2
    assert got == [BOTH, BOTH]
    with pytest.raises(NotificationFailed, match=r"callback failed: ValueError: password=\[redacted\]"):
        await send(callback(fails), BOTH)


async def test_no_attempt_takes_longer_than_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(_: Message) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(channels, "LONGEST", 10)
    with pytest.raises(NotificationFailed, match=r"callback took longer than 0\.01 s"):
        await send(callback(hangs), BOTH)


# -- answers ---------------------------------------------------------------------------------------------------------


def outbox_item(message: Message) -> Item:
    return Item("i", "redrive.outbox.alerts@ops", codec.encode(message), 1, State.LEASED, AT, AT, AT)


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (400, {}, Undeliverable),
        (413, {}, Undeliverable),
        (403, {}, NotificationFailed),
        (404, {}, NotificationFailed),
        (500, {}, NotificationFailed),
        (302, {"Location": "http://127.0.0.1/"}, NotificationFailed),
        (429, {"Retry_After": "7"}, Retry),
        (503, {"Retry_After": "999999"}, Retry),
    ],
)
async def test_what_an_answer_means_for_the_next_attempt(
    status: int, headers: dict[str, str], error: type[Exception]
) -> None:
    async with http_receiver() as there:
        there.answer(status, f"no_service {SECRET}", **headers)
        with pytest.raises(error) as raised:
            await deliver(slack(f"{there.url}/services/{SECRET}"), outbox_item(BOTH))
    assert f"slack answered {status} no_service" in str(raised.value)
    assert "xoxsecret" not in str(raised.value)
    if isinstance(raised.value, Retry):
        assert raised.value.after == (7_000 if status == 429 else 3_600_000)


async def test_a_channel_that_nobody_answers_is_an_error_without_its_secret() -> None:
    async with http_receiver() as there:
        url = f"{there.url}/services/{SECRET}"
    for channel in (slack(url), telegram("123:abc", 1, there.url), opsgenie("g3n13", url)):
        with pytest.raises(NotificationFailed) as raised:
            await send(channel, BOTH)
        assert not any(secret in str(raised.value) for secret in ("xoxsecret", "123:abc", "g3n13"))


@pytest.mark.parametrize(
    ("channel", "shown"),
    [
        (slack("https://hooks.slack.com/services/T0/B0/secret"), "slack url=https://hooks.slack.com/…"),
        (webhook("https://example.com:8443/in?token=secret"), "webhook url=https://example.com:8443/…"),
        (pagerduty("secret"), "pagerduty url=https://events.pagerduty.com/…"),
        (opsgenie("secret"), "opsgenie url=https://api.opsgenie.com/…"),
        (telegram("secret", -100), "telegram url=https://api.telegram.org/… chat=-100"),
        (
            email("smtp.example.com", "a@example.com", "b@example.com", user="ann", password="secret"),  # noqa: S106
            "email host=smtp.example.com sender=a@example.com to=b@example.com port=587 tls=starttls user=ann",
        ),
        (command(["/usr/bin/page", "--key", "secret"]), "command argv=/usr/bin/page timeout=30s"),
    ],
)
def test_no_secret_of_a_channel_is_shown(channel: Channel, shown: str) -> None:
    assert str(channel) == repr(channel) == shown
    assert channel.kind in CHANNELS
