"""`redrive webhook listen`: for development. Webhooks come in here, go on to a URL, and each attempt is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from redrive.cli.access import HELP_NAMES, config_option, verbose_option
from redrive.cli.covered import covered_payload
from redrive.cli.exits import Talk
from redrive.cli.output import bold, clean, cut, in_colour, iso, on_terminal, red, say, write
from redrive.cli.webhook_access import event_of, relay_of
from redrive.cli.webhook_run import RelayProcess
from redrive.core.durations import Duration
from redrive.core.item import Instant, Item, Millis
from redrive.core.redact import redact_text
from redrive.errors import ConfigError, NotFound
from redrive.settings.readers import without_password

if TYPE_CHECKING:
    from redrive.net.http import HttpClient
    from redrive.webhooks import Endpoint, Relay
    from redrive.webhooks.delivery import Request, Response, Send

EVERYWHERE = ("0.0.0.0/0", "::/0")
"""Whoever starts this says where they go."""
STORE = "sqlite:///hooks.db"
GONE = 410
START = 160
"""Characters of an answer that are shown."""
ABOUT = f"""Receive webhooks, pass them on to a URL, and show each attempt. For development.

\b
Examples:
  redrive webhook listen --forward http://localhost:3000
  redrive webhook listen --forward http://localhost:3000/hooks --http 127.0.0.1:9000 -v
  redrive webhook listen --forward http://localhost:3000 --endpoint github --store sqlite:///redrive.db

Post to http://127.0.0.1:8080/h/dev. An endpoint that is new delivers in no order, so that a failure does not hold up
what comes next. One that is there keeps its settings; only its URL is not used. The store is {STORE}, unless
--store, REDRIVE_STORE or redrive.toml says otherwise.

A line has the time, the id of the webhook, its event or path, the status of the answer and the time it took, in a pipe
with tabs between. Below it stands the start of an answer that is no success; with -v, both bodies.
"""


@click.command("listen", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--forward", metavar="URL", required=True, help="Where they go; local addresses are allowed.")
@click.option("--endpoint", "endpoint_id", metavar="ID", default="dev", show_default=True, help="Whose they are.")
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where they come in.")
@click.option("--store", metavar="URL", help=f"Where they are kept.  [default: {STORE}]")
@config_option
@verbose_option
@click.pass_obj
def listen(talk: Talk, *, forward: str, endpoint_id: str, http: str, store: str | None) -> int:
    from redrive.cli.worker_logs import set_up_logging
    from redrive.cli.worker_session import Session
    from redrive.net.urls import check_http_url
    from redrive.settings import load

    check_http_url(forward, field="--forward", secret="a header of the endpoint")  # noqa: S106 - says where it belongs
    loaded = load(config=talk.config, flags={"store": store})
    url = STORE if loaded.origins["store"] == "default" else loaded.settings.store
    set_up_logging(debug=False, level="warning")
    relay = relay_of(url, loaded.settings, allow=EVERYWHERE, works=True)
    process = _Listening(relay, http, endpoint_id, forward, _Lines(bodies=talk.debug))
    say(f"webhooks are kept in {without_password(url)} and passed on to {forward}; Ctrl-C ends")
    return asyncio.run(Session(process, loaded.settings.worker.grace).serve())


class _Listening(RelayProcess):
    """With a worker for one endpoint alone, and alerts: webhooks of others are not to be sent to the URL."""

    def __init__(self, relay: Relay, http: str, endpoint_id: str, forward: str, lines: _Lines) -> None:
        super().__init__(relay, self._deliver, http)
        self._endpoint_id = endpoint_id
        self._forward = forward
        self._lines = lines

    async def open(self) -> None:
        await super().open()
        self._endpoint = await self._found()
        if self._endpoint.status != "active":
            why = f"{self._endpoint.status}: {self._endpoint.status_reason}"
            say(f"endpoint {self._endpoint_id} is {why}; `redrive webhook endpoint enable` lets it deliver")

    async def _found(self) -> Endpoint:
        try:
            found = await self.relay.endpoints.get(self._endpoint_id)
        except NotFound:
            made = self.relay.endpoints.create(self._forward, id=self._endpoint_id, order="none", disable_after=None)
            return (await made).endpoint
        if found.via != "direct":
            raise ConfigError(f"{found.id} is delivered to by hubs", field="--endpoint", hint="name another")
        return found

    def receiving(self, address: str) -> None:
        say(f"receiving at http://{address}/h/{self._endpoint_id}")

    async def _deliver(self, grace: Duration) -> None:
        from redrive.app.internals import handler_for, parts_of, store_of
        from redrive.engine.registry import is_outbox
        from redrive.net.http import HttpClient
        from redrive.webhooks.delivery import POLICY

        client, endpoint, app = HttpClient(), self._endpoint, self.relay.app
        handle = self.relay.delivery(self._shown(client)).handle
        slots = 1 if endpoint.ordered else endpoint.concurrency
        handler = handler_for(endpoint.queue, handle, policy=POLICY, lease=60_000, concurrency=slots)
        parts = parts_of(app)
        outboxes = {queue: each for queue, each in parts.registry.handlers.items() if is_outbox(queue)}
        await client.open()
        try:
            await parts.work(store_of(app), {**outboxes, endpoint.queue: handler}, until_idle=False, grace=grace)
        finally:
            await client.close()

    def _shown(self, client: HttpClient) -> Send:
        from redrive.app.internals import clock_of
        from redrive.webhooks.delivery import sent
        from redrive.webhooks.model import envelope_of

        clock = clock_of(self.relay.app)

        async def shown(item: Item, make: Callable[[], Request]) -> Response:
            began, since = clock.now(), clock.monotonic()
            request = msgspec.structs.replace(make(), url=self._forward)
            response = await sent(client, request)
            named = envelope_of(item.payload).event_type or event_of(request.headers, request.body)
            what = named or f"/h/{self._endpoint_id}"
            self._lines.show(began, item, what, request.body, response, took=clock.monotonic() - since)
            return response

        return shown


class _Lines:
    def __init__(self, *, bodies: bool) -> None:
        self._bodies = bodies

    def show(self, at: Instant, item: Item, what: str, body: bytes, response: Response, *, took: Millis) -> None:
        fine = 200 <= response.status < 300
        status = str(response.status or "no answer")
        again = [f"attempt {item.attempt}"] if item.attempt > 1 else []
        cells = [clean(cell) for cell in ((iso(at) or "")[11:23], item.id, what, status, f"{took} ms", *again)]
        if in_colour():
            cells[3] = bold(status) if fine else red(status)
        write(("  " if on_terminal() else "\t").join(cells))
        for line in self._below(body, response, fine=fine):
            write(f"  {clean(line)}")

    def _below(self, body: bytes, response: Response, *, fine: bool) -> Iterator[str]:
        if self._bodies:
            yield from (f"> {line}" for line in covered_payload(body)[0].split("\n"))
        if self._bodies and response.body:
            yield from (f"< {line}" for line in covered_payload(response.body)[0].split("\n"))
        elif not fine:
            answer = response.error or covered_payload(response.body, None)[0] or "an empty answer"
            yield cut(" ".join(redact_text(answer).split()), START)
        if response.status == GONE:
            yield "410 disables the endpoint; `redrive webhook endpoint enable` lets it deliver again"
