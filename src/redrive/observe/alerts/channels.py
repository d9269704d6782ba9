"""Alert channels: factory functions for each kind (Slack, PagerDuty, e-mail, …), its wire format, and `send`.

`send` makes one attempt and returns the receiver's answer, or raises NotificationFailed. Neither contains a secret of
the channel.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.core.durations import Duration
from redrive.core.item import Millis
from redrive.core.quantity import cut
from redrive.engine.caller import is_async
from redrive.engine.evidence import as_delay
from redrive.errors import NotificationFailed
from redrive.observe.alerts.model import LONGEST, Channel, Message, Notice, Severity
from redrive.observe.alerts.options import checked
from redrive.stores.aside import aside

if TYPE_CHECKING:
    from smtplib import SMTP

WITHIN: Millis = 15_000
"""Timeout of one request or one mail, from connect to answer."""
ANSWER = 4_096
"""Bytes of an answer that are read; its first characters are in errors."""
USELESS = frozenset({400, 413, 414, 422})
"""Statuses that refuse the message itself: a retry gets the same answer."""
SUMMARY = {"pagerduty": 1_024, "opsgenie": 130}
DESCRIPTION = 15_000
TELEGRAM = 4_096
SLACK = 20_000
PRIORITIES: dict[Severity, str] = {"critical": "P1", "error": "P2", "warning": "P3", "info": "P5"}
ALONE = frozenset({"pagerduty", "opsgenie"})
"""Kinds whose service keeps an incident per alert: each notice is a message by itself."""


def callback(function: Callable[[Message], object]) -> Channel:
    """Your own function, async or not, called with the Message. An exception is a failed attempt."""
    return Channel("callback", checked(function=function))


def webhook(url: str) -> Channel:
    """A POST of the message as JSON, with its id as Idempotency-Key."""
    return Channel("webhook", checked(url=url))


def slack(url: str) -> Channel:
    """A Slack incoming webhook."""
    return Channel("slack", checked(url=url))


def pagerduty(routing_key: str, url: str = "https://events.pagerduty.com/v2/enqueue") -> Channel:
    """PagerDuty, Events API v2: one incident for each alert, resolved when it is over."""
    return Channel("pagerduty", checked(routing_key=routing_key, url=url))


def opsgenie(key: str, url: str = "https://api.opsgenie.com/v2/alerts") -> Channel:
    """Opsgenie: one alert for each alert, closed when it is over. In the EU the host is api.eu.opsgenie.com."""
    return Channel("opsgenie", checked(key=key, url=url))


def telegram(token: str, chat: str | int, url: str = "https://api.telegram.org") -> Channel:
    """A Telegram bot's message to a chat."""
    return Channel("telegram", checked(token=token, chat=chat, url=url))


def email(
    host: str,
    sender: str,
    to: str | Iterable[str],
    *,
    port: int = 587,
    tls: str = "starttls",
    user: str | None = None,
    password: str | None = None,
) -> Channel:
    """Mail by SMTP. `tls`: starttls, tls (from the first byte, port 465) or none."""
    return Channel("email", checked(host=host, sender=sender, to=to, port=port, tls=tls, user=user, password=password))


def command(argv: Iterable[str], timeout: Duration = "30s") -> Channel:
    """A program, run without a shell: it reads the message as JSON from stdin; exit code 0 is success."""
    return Channel("command", checked(argv=argv, timeout=timeout))


CHANNELS: dict[str, Callable[..., Channel]] = {
    each.__name__: each for each in (callback, webhook, slack, pagerduty, opsgenie, telegram, email, command)
}


async def send(channel: Channel, message: Message) -> str:
    """One attempt. Returns the receiver's answer."""
    limit = asyncio.timeout(LONGEST / 1000)
    try:
        async with limit:
            answer = await _SENDERS[channel.kind](channel, message)
    except NotificationFailed as error:
        error.message = channel.hide(error.message)
        error.args = (error.message,)
        raise error from None
    except Exception as error:  # noqa: BLE001 - any error is a failed attempt
        text = channel.hide(cut(f"failed: {type(error).__name__}: {' '.join(str(error).split())}", 300))
        why = f"took longer than {LONGEST / 1000:g} s" if limit.expired() else text
        raise NotificationFailed(f"{channel.kind} {why}") from None
    return channel.hide(answer)


# --- HTTP ---


async def _post(
    channel: Channel, body: object, *, url: str = "", headers: dict[str, str] | None = None, key: str = ""
) -> str:
    from redrive.net.http import HttpClient

    client = HttpClient(connections=1)
    await client.open()
    try:
        answer = await client.post(
            url or channel.options["url"],
            msgspec.json.encode(body),
            {"Content-Type": "application/json", **(headers or {})},
            within=WITHIN,
            limit=ANSWER,
            key=key,
        )
    finally:
        await client.close()
    text = " ".join(answer.body.decode(errors="replace").split())
    shown = f"{answer.status} {cut(text, 200)}".rstrip()
    if 200 <= answer.status < 300:
        return shown
    after = as_delay(answer.headers.get("Retry-After"), 0) if answer.status in (429, 503) else None
    raise NotificationFailed(
        f"{channel.kind} answered {shown}", status=answer.status, useless=answer.status in USELESS, retry_after=after
    )


async def _webhook(channel: Channel, message: Message) -> str:
    return await _post(channel, message.as_object(), key=message.id)


async def _slack(channel: Channel, message: Message) -> str:
    return await _post(channel, {"text": message.text(_escape, SLACK)})


def _escape(text: str) -> str:
    """For Slack and Telegram, which both require these HTML entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


async def _telegram(channel: Channel, message: Message) -> str:
    token, chat = channel.options["token"], channel.options["chat"]
    body = {
        "chat_id": chat,
        "text": message.text(_escape, TELEGRAM, _utf16_units),
        "parse_mode": "HTML",
        "link_preview_options": {"is_disabled": True},
    }
    return await _post(channel, body, url=f"{channel.options['url'].rstrip('/')}/bot{token}/sendMessage")


async def _pagerduty(channel: Channel, message: Message) -> str:
    return await _each(message, partial(_pagerduty_event, channel, _left_out(message)))


def _left_out(message: Message) -> dict[str, str]:
    """The number of omitted alerts, for the details of an incident."""
    return {"left_out": f"{message.more:,} more alerts"} if message.more else {}


async def _pagerduty_event(channel: Channel, more: dict[str, str], notice: Notice) -> str:
    event: dict[str, Any] = {"routing_key": channel.options["routing_key"], "dedup_key": notice.key}
    if notice.status == "resolved":
        return await _post(channel, {**event, "event_action": "resolve"})
    fields = notice.as_object()
    payload = {
        "summary": cut(f"{notice.rule}: {notice.text}", SUMMARY["pagerduty"]),
        "source": ", ".join(notice.queues) or "redrive",
        "severity": notice.severity,
        "timestamp": fields["at"],
        "component": "redrive",
        "class": notice.rule,
        "custom_details": {name: fields[name] for name in ("subject", "text", "queues", "since", "repeated")} | more,
    }
    return await _post(channel, {**event, "event_action": "trigger", "payload": payload})


async def _opsgenie(channel: Channel, message: Message) -> str:
    return await _each(message, partial(_opsgenie_alert, channel, _left_out(message)))


async def _opsgenie_alert(channel: Channel, more: dict[str, str], notice: Notice) -> str:
    url, headers = channel.options["url"].rstrip("/"), {"Authorization": f"GenieKey {channel.options['key']}"}
    if notice.status == "resolved":
        body = {"source": "redrive", "note": cut(str(notice), DESCRIPTION)}
        return await _post(channel, body, url=f"{url}/{notice.key}/close?identifierType=alias", headers=headers)
    fields = notice.as_object()
    alert = {
        "message": cut(f"{notice.rule}: {notice.text}", SUMMARY["opsgenie"]),
        "alias": notice.key,
        "description": cut(notice.text, DESCRIPTION),
        "priority": PRIORITIES[notice.severity],
        "source": "redrive",
        "entity": cut(notice.subject, 512),
        "tags": ["redrive", cut(notice.rule, 50)],
        "details": {"queues": ", ".join(notice.queues), "since": fields["since"], "severity": notice.severity} | more,
    }
    return await _post(channel, alert, url=url, headers=headers)


async def _each(message: Message, post: Callable[[Notice], Awaitable[str]]) -> str:
    """For the kinds in ALONE, whose messages usually have one notice."""
    return "; ".join([await post(notice) for notice in message.notices])


# --- the others ---


async def _callback(channel: Channel, message: Message) -> str:
    function = channel.options["function"]
    await (function(message) if is_async(function) else aside(partial(function, message)))
    return "called"


async def _email(channel: Channel, message: Message) -> str:
    """The timeout of a socket restarts with each read: this one bounds the whole delivery."""
    connections: list[SMTP] = []
    try:
        async with asyncio.timeout(WITHIN / 1000):
            return await aside(partial(_mail, channel, message, connections))
    except TimeoutError:
        raise NotificationFailed(f"email took longer than {WITHIN / 1000:g} s") from None
    finally:
        for connection in connections:
            with suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)  # ends the read that the thread waits for


def _mail(channel: Channel, message: Message, connections: list[SMTP]) -> str:
    """Adds its connection to `connections` before it connects, so that the caller can shut it down."""
    import smtplib
    import ssl
    from email.message import EmailMessage
    from email.utils import formatdate

    of = channel.options
    mail = EmailMessage()
    mail["Subject"] = cut(f"[redrive] {message.title}", 200)
    mail["From"], mail["To"] = of["sender"], ", ".join(of["to"])
    mail["Date"] = formatdate(message.at / 1000)
    mail["Message-ID"] = f"<{message.id}@{of['sender'].rpartition('@')[2]}>"  # lets mail servers drop duplicates
    mail.set_content(message.text())
    context = None if of["tls"] == "none" else ssl.create_default_context()
    within, encrypted = WITHIN / 1000, of["tls"] == "tls"
    server = smtplib.SMTP_SSL(timeout=within, context=context) if encrypted else smtplib.SMTP(timeout=within)
    # The host name of its certificate. A constructor that connects sets it, but cannot be interrupted.
    server._host = of["host"]  # type: ignore[attr-defined]  # noqa: SLF001 - as above
    connections.append(server)
    try:
        code, greeting = server.connect(of["host"], of["port"])
        if code != 220:
            server.close()
            raise smtplib.SMTPConnectError(code, greeting)
        with server:
            if of["tls"] == "starttls":
                server.starttls(context=context)
            if of["user"]:
                server.login(of["user"], of["password"] or "")
            refused = server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise NotificationFailed(f"email was refused: {error.smtp_code} {cut(text, 200)}") from None
    return f"accepted, but not for {', '.join(refused)}" if refused else "accepted"


async def _command(channel: Channel, message: Message) -> str:
    argv, pipe = channel.options["argv"], asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=asyncio.subprocess.DEVNULL, stderr=pipe, start_new_session=True
    )
    try:
        async with asyncio.timeout(channel.options["timeout"] / 1000):
            errors = await _communicate(process, msgspec.json.encode(message.as_object()))
    except TimeoutError:
        raise NotificationFailed(
            f"command {argv[0]} took longer than {channel.options['timeout'] / 1000:g} s"
        ) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes
            await process.wait()
    if process.returncode:
        text = cut(" ".join(errors.decode(errors="replace").split()), 200)
        raise NotificationFailed(f"command {argv[0]} exited with {process.returncode}: {text}".rstrip(": "))
    return "exit 0"


async def _communicate(process: asyncio.subprocess.Process, body: bytes) -> bytes:
    """Returns the beginning of stderr; `Process.communicate` would keep all of it."""
    assert process.stdin is not None and process.stderr is not None  # noqa: S101, PT018 - both are pipes
    with suppress(BrokenPipeError, ConnectionResetError):  # the program need not read its stdin
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()
    errors = b""
    while part := await process.stderr.read(ANSWER):
        errors = (errors + part)[:ANSWER]
    await process.wait()
    return errors


_SENDERS: dict[str, Callable[[Channel, Message], Awaitable[str]]] = {
    "callback": _callback,
    "webhook": _webhook,
    "slack": _slack,
    "pagerduty": _pagerduty,
    "opsgenie": _opsgenie,
    "telegram": _telegram,
    "email": _email,
    "command": _command,
}
