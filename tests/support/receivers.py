"""Local receivers of alerts, on real ports in the loop of a test: HTTP and SMTP. Both keep what they got."""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.listening import HOST, listening


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpReceiver:
    """Answers with what is in `answers`, one each, and then with 200 `ok`. `accepted`: requests that met a 2xx."""

    requests: list[Request] = field(default_factory=list)
    accepted: list[Request] = field(default_factory=list)
    answers: deque[tuple[int, str, Mapping[str, str]]] = field(default_factory=deque)
    url: str = ""

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append((status, body, named))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = first.split(" ")
        assert method == "POST"
        request = Request(path, headers, body)
        self.requests.append(request)
        status, text, more = self.answers.popleft() if self.answers else (200, "ok", {})
        if 200 <= status < 300:
            self.accepted.append(request)
        told = {"Content-Length": str(len(text.encode())), "Connection": "close", **more}
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        writer.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n{text}".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def http_receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    async with listening(receiver.talk) as port:
        receiver.url = f"http://{HOST}:{port}"
        yield receiver


@dataclass
class SmtpReceiver:
    """Speaks as much SMTP as a client needs. `login`: user and password that it wants. `refuse`: its answer to DATA.
    `encrypted`: from the first byte, or by STARTTLS.
    """

    tls: ssl.SSLContext | None = None
    login: tuple[str, str] | None = None
    refuse: str = ""
    port: int = 0
    mails: list[str] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    encrypted: bool = False

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 receiver\r\n")
        while line := (await reader.readline()).decode().strip():
            word = line.split(" ")[0].upper()
            if word == "EHLO":
                more = ["STARTTLS"] * (self.tls is not None and not self.encrypted) + ["AUTH PLAIN"] * bool(self.login)
                words = ["receiver", *more]
                said = [f"250{' ' if each is words[-1] else '-'}{each}" for each in words]
                writer.write("".join(f"{each}\r\n" for each in said).encode())
            elif word == "STARTTLS":
                assert self.tls is not None
                writer.write(b"220 go\r\n")
                await writer.drain()
                await writer.start_tls(self.tls)
                self.encrypted = True
            elif word == "AUTH":
                _, user, password = b64decode(line.split(" ")[2]).decode().split("\0")
                self.logins.append((user, password))
                writer.write(b"235 well\r\n" if self.logins[-1] == self.login else b"535 who are you\r\n")
            elif word == "DATA":
                writer.write(b"354 go\r\n")
                mail = await reader.readuntil(b"\r\n.\r\n")
                if self.refuse:
                    writer.write(f"{self.refuse}\r\n".encode())
                else:
                    self.mails.append(mail[:-5].decode())
                    writer.write(b"250 taken\r\n")
            else:
                if word == "RCPT":
                    self.recipients.append(line.partition(":")[2])
                writer.write(b"221 bye\r\n" if word == "QUIT" else b"250 well\r\n")
            await writer.drain()
            if word == "QUIT":
                break
        writer.close()


@asynccontextmanager
async def smtp_receiver(receiver: SmtpReceiver) -> AsyncIterator[SmtpReceiver]:
    async with listening(receiver.talk, receiver.tls if receiver.encrypted else None) as port:
        receiver.port = port
        yield receiver
