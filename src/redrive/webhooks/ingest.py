"""The ASGI application of a relay: it receives webhooks at /h/ENDPOINT, verifies, stores, and answers fast.

A 200 is sent after the webhook is durable, and never otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import re
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from redrive.app.internals import clock_of, parts_of
from redrive.errors import ConfigError, PayloadTooLarge, QueueFull, RedriveError, StoreError
from redrive.net.verification import delivery_id, verify
from redrive.webhooks import hub
from redrive.webhooks.model import Endpoint, Envelope, Pairs
from redrive.webhooks.relay import Relay

logger = logging.getLogger("redrive.webhooks")

READ_WITHIN = 30.0
"""Seconds for the whole body of a request."""
IN_MEMORY = 256 * 1024 * 1024
"""Bytes of bodies that are received or stored at once; more are asked to come again."""
AGAIN = {"Retry-After": "5"}
CLOSE = {"Connection": "close"}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


def application(relay: Relay) -> Starlette:
    """Open the relay before requests come in."""
    ingest, edge = Ingest(relay), hub.Edge(relay)
    routes = [Route("/h/{endpoint}", ingest.receive, methods=["POST"]), *edge.routes()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused}, lifespan=edge.lifespan)
    app.router.redirect_slashes = False  # senders do not follow redirects
    app.state.relay = relay
    return app


class Ingest:
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._room = IN_MEMORY

    async def receive(self, request: Request) -> JSONResponse:
        body = bytearray()
        try:
            parts_of(self._relay.app).check_open()
            endpoint = await self._relay.endpoints.cached(request.path_params["endpoint"])
            if endpoint is None:
                raise HTTPException(404, "no such endpoint")
            headers = _headers(request)
            await self._read(request, body)
            return await self._store(endpoint, request, headers, bytes(body))
        except PayloadTooLarge as error:
            raise HTTPException(413, error.message) from None
        except QueueFull:
            raise HTTPException(503, "the queue is full", AGAIN) from None
        except RedriveError as error:  # the sender need not know more, such as where the store is
            logger.error("a webhook was not stored, and refused: %s: %s", type(error).__name__, error)  # noqa: TRY400
            raise HTTPException(503, "the store does not answer", AGAIN) from None
        finally:
            self._room += len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Refused by its length before it is read; counted while it is read, since the length may be a lie."""
        limit = self._relay.max_body
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > limit):
            raise HTTPException(413, f"the body is larger than {limit:,} bytes")
        try:
            async with asyncio.timeout(READ_WITHIN):
                async for part in request.stream():
                    self._room -= len(part)
                    body += part
                    if len(body) > limit:
                        raise HTTPException(413, f"the body is larger than {limit:,} bytes")
                    if self._room < 0:
                        raise HTTPException(503, "too much is received at once", AGAIN)
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {READ_WITHIN:g} s", CLOSE) from None
        except ClientDisconnect:
            raise HTTPException(400, "the body is not whole") from None
        # A server may lose the body of a request that asks for HTTP/2: uvicorn does.
        if len(body) < int(length if length.isdecimal() else "upgrade" in request.headers):
            raise HTTPException(400, "the body is not whole")

    async def _store(self, endpoint: Endpoint, request: Request, headers: Pairs, body: bytes) -> JSONResponse:
        valid, why = self._verified(endpoint, headers, body)
        if valid is False and endpoint.bad_signature == "refuse":
            raise HTTPException(401, f"the signature was refused: {why}")
        query = quote(request.scope["query_string"], safe=_ASCII)
        envelope = Envelope(body, headers, query, signature_valid=valid, signature_error=why)
        # Anyone could name the id of a webhook that is not signed, to keep the real one out.
        repeat_of = delivery_id(endpoint.verification, headers, body) if valid is not False else ""
        key = f"{endpoint.verification.provider}:{repeat_of}" if repeat_of else ""
        put = await self._relay.receive(endpoint, envelope, delivery_id=key)
        return JSONResponse({"id": str(put), "duplicate": put.duplicate})

    def _verified(self, endpoint: Endpoint, headers: Pairs, body: bytes) -> tuple[bool | None, str]:
        """None where nothing is to be verified. Secrets that cannot be read flag it, and it is stored all the same; if
        it would be refused for that, the sender is asked to come again.
        """
        if endpoint.verification.provider == "none":
            return None, ""
        try:
            verification = self._relay.endpoints.verification(endpoint)
        except (StoreError, ConfigError) as error:
            if endpoint.bad_signature == "refuse":
                raise
            return False, f"the secrets of the endpoint cannot be read: {error}"
        why = verify(verification, headers, body, now_seconds=clock_of(self._relay.app).now() / 1000)
        return not why, why


def _headers(request: Request) -> Pairs:
    """All, repeated ones too. HTTP has no control characters in them, and they could not be sent on."""
    headers = tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw])
    for name, value in headers:
        if _CONTROL.search(value):
            raise HTTPException(400, f"the header {name} has a control character")
    return headers


async def _refused(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
