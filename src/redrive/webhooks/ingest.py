"""The ASGI application of a relay: it receives webhooks at /h/ENDPOINT, verifies, stores, and answers fast.

A 200 is sent after the webhook is durable, and never otherwise.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from redrive.app.internals import clock_of
from redrive.errors import ConfigError, PayloadTooLarge, QueueFull, StoreError
from redrive.webhooks import hub
from redrive.webhooks.model import Endpoint, Envelope, Pairs
from redrive.webhooks.providers import delivery_id, verify
from redrive.webhooks.relay import Relay

READ_WITHIN = 30.0
"""Seconds for the whole body of a request."""
IN_MEMORY = 256 * 1024 * 1024
"""Bytes of bodies that are received at once; more are asked to come again."""
RETRY_AFTER = "5"


def application(relay: Relay) -> Starlette:
    """Open the relay before requests come in."""
    ingest, edge = Ingest(relay), hub.Edge(relay)
    routes = [Route("/h/{endpoint}", ingest.receive, methods=["POST"]), *edge.routes()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused}, lifespan=edge.lifespan)
    app.state.relay = relay
    return app


class Ingest:
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._room = IN_MEMORY

    async def receive(self, request: Request) -> JSONResponse:
        try:
            endpoint = await self._relay.endpoints.cached(request.path_params["endpoint"])
            if endpoint is None:
                raise HTTPException(404, "no such endpoint")
            body = await self._body(request)
            return await self._store(endpoint, request, body)
        except (StoreError, QueueFull) as error:
            raise HTTPException(503, _plain(error), {"Retry-After": RETRY_AFTER}) from None
        except PayloadTooLarge as error:
            raise HTTPException(413, error.message) from None

    async def _body(self, request: Request) -> bytes:
        """Refused by its length before it is read; counted while it is read, since the length may be a lie."""
        limit = self._relay.max_body
        said = request.headers.get("content-length", "")
        if said.isdigit() and int(said) > limit:
            raise HTTPException(413, f"the body has {int(said):,} bytes; at most {limit:,} are taken")
        parts, size = [], 0
        try:
            async with asyncio.timeout(READ_WITHIN):
                async for part in request.stream():
                    size += len(part)
                    self._room -= len(part)
                    parts.append(part)
                    if size > limit:
                        raise HTTPException(413, f"the body is larger than {limit:,} bytes")
                    if self._room < 0:
                        raise HTTPException(503, "too much is received at once", {"Retry-After": RETRY_AFTER})
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {READ_WITHIN:g} s") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body is not whole") from None
        finally:
            self._room += size
        return b"".join(parts)

    async def _store(self, endpoint: Endpoint, request: Request, body: bytes) -> JSONResponse:
        headers: Pairs = tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw])
        provider = endpoint.verification.provider
        valid, why = await self._verified(endpoint, headers, body)
        if valid is False and endpoint.bad_signature == "refuse":
            raise HTTPException(401, f"the signature was refused: {why}")
        envelope = Envelope(
            body, headers, query=request.url.query, signature_valid=valid, signature_error=why if valid is False else ""
        )
        # Anyone could name the id of a webhook that is not signed, to keep the real one out.
        repeat_of = delivery_id(endpoint.verification, headers, body) if valid is not False else ""
        put = await self._relay.receive(endpoint, envelope, delivery_id=f"{provider}:{repeat_of}" if repeat_of else "")
        return JSONResponse({"id": str(put), "duplicate": put.duplicate})

    async def _verified(self, endpoint: Endpoint, headers: Pairs, body: bytes) -> tuple[bool | None, str]:
        """None where nothing is to be verified. Secrets that cannot be read flag it: it is stored all the same."""
        if endpoint.verification.provider == "none":
            return None, ""
        try:
            verification = self._relay.endpoints.verification(endpoint)
        except (StoreError, ConfigError) as error:
            return False, f"the secrets of the endpoint cannot be read: {error}"
        why = verify(verification, headers, body, now_seconds=clock_of(self._relay.app).now() / 1000)
        return not why, why


def _plain(error: StoreError | QueueFull) -> str:
    """Without what an outsider need not know: where the store is, say."""
    return "the queue is full" if isinstance(error, QueueFull) else "the store does not answer"


async def _refused(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    body: dict[str, Any] = {"error": error.detail}
    return JSONResponse(body, error.status_code, error.headers)
