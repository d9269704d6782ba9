"""Client for outgoing HTTP, on aiohttp: one deadline per request, a bounded answer, no redirects, no environment.

Each client has its own connection pool, so that a connection that one guard allowed is never used under another.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct
from msgspec.structs import replace

from redrive._version import __version__
from redrive.core.item import Millis, error_line
from redrive.core.redact import REDACTED, redact_text
from redrive.errors import ConfigError
from redrive.net.guard import Guard
from redrive.stores.aside import aside

KEPT = 15.0
"""Seconds that an idle connection is kept: many servers close it after that, perhaps just when it is used."""
HEAD_LIMIT = 64 * 1024
"""Bytes of one header."""
Headers = Mapping[str, str] | Sequence[tuple[str, str]]
"""Pairs may repeat a name: each of them is sent, in their order. Values are Latin-1, as servers give them: bytes that
are UTF-8 are sent as they came, others as UTF-8.
"""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


_under_way: ContextVar[SimpleNamespace] = ContextVar("redrive_http_request")
"""The current request. `dialled`: a connection was opened for it. `began`: its answer began."""


class HttpError(Exception):
    """A request without a complete answer. The text names the cause, without the query of the URL."""


class Unreachable(HttpError):
    """No connection, or it was closed without an answer, or the server does not speak HTTP."""


class TimedOut(HttpError):
    """No complete answer before the deadline."""


class BrokenAnswer(HttpError):
    """The answer began and was cut off, or cannot be decoded."""


class Unsendable(HttpError):
    """The request is invalid, and a retry would fail as well: a bad URL or header."""


class HttpAnswer(Struct, frozen=True):
    """`headers` are case-insensitive: a lookup returns the first of a name, the items are all of them, in order.

    `key` is the idempotency key of the request. `whole`: the body was not cut at the limit.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    key: str = ""
    whole: bool = True


Enough = Callable[[HttpAnswer], bool]
"""A function that is called while a body arrives: True ends the reading. For streams that stay open."""


class Tls(Struct, frozen=True):
    """PEM files: `ca` replaces the system's certificates, `certificate` and `key` are those of the client."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ValueError) as error:
            hint = "name files in PEM that can be read"
            raise ConfigError(f"the certificates cannot be used: {error}", field="tls", hint=hint) from None
        return context


class HttpClient:
    """`guard` None: every address may be dialled, for targets that the program itself configures.

    `proxy` dials instead of the client, so the guard cannot check: with a guard, `proxy_filters` must declare that the
    proxy does. `packed`: a compressed body is returned as it came; otherwise it is a BrokenAnswer.
    """

    def __init__(
        self,
        *,
        guard: Guard | None = None,
        connections: int = 100,
        proxy: str | None = None,
        proxy_filters: bool = False,
        tls: Tls | None = None,
        packed: bool = False,
    ) -> None:
        if guard is not None and proxy is not None and not proxy_filters:
            hint = "use a proxy that denies private addresses and set proxy_filters=True, or no proxy"
            raise ConfigError("the addresses that a proxy dials cannot be checked", field="proxy", hint=hint)
        self._guard = None if proxy is not None else guard
        self._connections = connections
        self._proxy = proxy
        self._tls = Tls() if tls is None else tls
        self._packed = packed
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        context = await aside(self._tls.context)
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            use_dns_cache=False,
            keepalive_timeout=KEPT,
            ssl=context,
            resolver=None if self._guard is None else _Resolver(self._guard),
            socket_factory=_dialler(self._guard),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
            headers={"User-Agent": f"redrive/{__version__}", "Accept-Encoding": "identity"},
            trust_env=False,
            max_line_size=HEAD_LIMIT,
            max_field_size=HEAD_LIMIT,
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        url: str,
        body: bytes,
        headers: Headers,
        *,
        within: Millis,
        limit: int,
        enough: Enough | None = None,
        safe: bool = False,
        token: str = "",
        key: str = "",
    ) -> HttpAnswer:
        """Raises HttpError and TargetDenied. `within` bounds the whole request, `limit` the bytes of the body.

        `safe`: the target recognises a repeat. The request is then sent again if an idle connection was closed without
        an answer: as a rule the server closed it before it saw the request. aiohttp repeats GET, PUT, DELETE and other
        methods that are idempotent by definition in any case. `token` is a bearer token, which is redacted in the
        answer and in errors. `key` is the idempotency key.
        """
        used = SimpleNamespace(dialled=False, began=False)
        _under_way.set(used)
        pairs = _with(headers, token, key)
        once = partial(self._once, method, url, body, pairs, limit=limit, enough=enough, used=used, key=key)
        try:
            async with asyncio.timeout(within / 1000):
                try:
                    answer = await once()
                except (aiohttp.ServerDisconnectedError, ConnectionError):
                    if not (safe and not used.dialled) or used.began:
                        raise
                    answer = await once()
        except BrokenAnswer as error:
            raise BrokenAnswer(_redacted(str(error), token)) from None
        except TimeoutError:
            raise TimedOut(f"no answer within {within / 1000:g} s") from None
        except aiohttp.ClientPayloadError as error:
            raise BrokenAnswer(_text_of(error, token)) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise Unsendable(_text_of(error, token)) from None
        except (aiohttp.ClientError, OSError) as error:  # before ValueError: a bad certificate is both
            raise (BrokenAnswer if used.began else Unreachable)(_text_of(error, token)) from None
        except ValueError as error:
            raise Unsendable(_text_of(error, token)) from None
        return replace(answer, body=answer.body.replace(token.encode(), REDACTED.encode())) if token else answer

    post = partialmethod(request, "POST")

    async def _once(
        self,
        method: str,
        url: str,
        body: bytes,
        headers: Sequence[tuple[str, str]],
        *,
        limit: int,
        enough: Enough | None,
        used: SimpleNamespace,
        key: str,
    ) -> HttpAnswer:
        if self._session is None:
            raise Unreachable("the client is not open")
        request = self._session.request(
            method,
            url,
            data=body or None,
            headers=headers,
            allow_redirects=False,
            proxy=self._proxy,
        )
        async with request as response:
            used.began = True
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.lower() != "identity" and not self._packed:  # unpacked it could be of any size
                response.close()
                raise BrokenAnswer(f"the answer has the content encoding {packed[:40]!r}, which was not requested")
            parts: list[bytes] = []
            size = 0
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size <= limit and enough is None:  # to join them each time would take long
                    continue
                answer = HttpAnswer(response.status, response.headers, b"".join(parts)[:limit], key, size <= limit)
                if size > limit or (enough is not None and enough(answer)):
                    response.close()
                    return answer
            return HttpAnswer(response.status, response.headers, b"".join(parts), key)


class _Resolver(AbstractResolver):
    """One DNS lookup for each connection; one denied address in the answer denies the host."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        self._guard.check(host, [each["host"] for each in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _dialler(guard: Guard | None) -> Callable[[Any], socket.socket]:
    """A socket factory that checks the very address that is dialled: a host may be an address in any spelling. It also
    notes the dialling: a request without it uses an idle connection. Tracing shows that too, but costs 10 % more.
    """

    def dial(address: Any) -> socket.socket:
        family, kind, protocol, _, where = address
        if guard is not None:
            guard.check(str(where[0]), [str(where[0])])
        request = _under_way.get(None)
        if request is not None:
            request.dialled = True
        return socket.socket(family, kind, protocol)

    return dial


def _with(headers: Headers, token: str, key: str) -> list[tuple[str, str]]:
    """The headers to send: those of the token and of the key replace others of their names. Raises Unsendable.

    Each name has one spelling: aiohttp would take a repeated name in another spelling for a replacement.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for ours, value in (("Authorization", token and f"Bearer {token}"), ("Idempotency-Key", key)):
        if value:
            pairs = [*(pair for pair in pairs if pair[0].lower() != ours.lower()), (ours, value)]
    for name, value in pairs:
        if not _NAME.fullmatch(name):
            raise Unsendable(f"{name[:80]!r} is not a header name")
        if not _VALUE.fullmatch(value):
            raise Unsendable(f"the value of the header {name} contains a control character or one outside Latin-1")
    spelled: dict[str, str] = {}
    return [(spelled.setdefault(name.lower(), name), _as_utf8(value)) for name, value in pairs]


def _as_utf8(value: str) -> str:
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _text_of(error: BaseException, token: str) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return _redacted(error_line(type(error).__name__, " ".join(str(error).split())[:200]), token)


def _redacted(text: str, token: str) -> str:
    return redact_text(text.replace(token, REDACTED) if token else text)
