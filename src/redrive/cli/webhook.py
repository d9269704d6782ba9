"""`redrive webhook …`: receive webhooks, deliver them, list them, replay them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from redrive.cli.access import EVERY, HELP_NAMES, all_option, how_many, limit_option, store_of, visit
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.covered import covered_payload
from redrive.cli.output import MISSING, bold, brief, clean, iso, say, write, write_json
from redrive.cli.queue_push import read_json, read_stdin
from redrive.cli.root import LazyGroup
from redrive.cli.selection import Choice, choice_options
from redrive.cli.tables import Listing, Shape, show_list
from redrive.cli.webhook_access import command, endpoints_by_settings, event_of, since_filter, stamp, with_relay
from redrive.core.acts import Amended, Replay
from redrive.core.item import Attempt, History, Instant, short_id
from redrive.core.redact import redact, redact_text
from redrive.errors import NotFound
from redrive.webhooks.model import STATUSES, Webhook, not_ours, queues_of, webhook_of

if TYPE_CHECKING:
    from redrive.app import Redrive

webhook = LazyGroup(
    "webhook",
    {
        "run": "redrive.cli.webhook_run:run",
        "edge": "redrive.cli.webhook_run:edge",
        "hub": "redrive.cli.webhook_run:hub",
        "listen": "redrive.cli.webhook_listen:listen",
        "endpoint": "redrive.cli.webhook_endpoint:endpoint",
        "token": "redrive.cli.webhook_token:token",
        "hubs": "redrive.cli.webhook_token:list_hubs",
        "list": "redrive.cli.webhook:list_webhooks",
        "show": "redrive.cli.webhook:show",
        "replay": "redrive.cli.webhook:replay",
        "publish": "redrive.cli.webhook:publish",
        "send-test": "redrive.cli.webhook:send_test",
    },
    help="""Webhooks: receive, deliver in order, replay; edge and hub.

\b
Examples:
  redrive webhook listen --forward http://localhost:3000
  redrive webhook endpoint create https://shop.example/hooks --id shop
  redrive webhook run --http 127.0.0.1:8080
  redrive webhook list --status failed
  redrive webhook replay k3v9q2ma --reason 'the bug is mended'
""",
)
ABOUT_LIST = """List webhooks, last received first.

\b
Examples:
  redrive webhook list --endpoint shop --status failed
  redrive webhook list --since 10m --json | jq -r '.webhooks[].id'

In a pipe the columns are ID ENDPOINT STATUS EVENT RECEIVED ATTEMPTS NEXT DELIVERED ERROR, separated by tabs. ERROR is
that of failed and dead ones, behind `bad signature` where one was flagged; `webhook show` has all. EVENT is that which
was published, or as the sender calls it.
"""
ABOUT_SHOW = """Show a webhook: what became of it, each attempt with the start of its answer, its headers and body.

\b
Examples:
  redrive webhook show k3v9q2ma
  redrive webhook show k3v9q2ma --json | jq '.history[-1].output'

ID may be any prefix of at least four characters that no other has. Secrets are covered.
"""
ABOUT_REPLAY = """Send failed and dead webhooks again: attempts from 0, and a new window of time.

\b
Examples:
  redrive webhook replay k3v9q2ma p7w4n8xd --reason 'the bug is mended'
  redrive webhook replay --where 'queue:webhook:shop died<2h' --reason INC-88 --dry-run
  redrive webhook list --status failed --all -q | redrive webhook replay - --yes --reason INC-88

Filters are those of `redrive help filters`, within webhooks; an item of another queue is skipped. The longest dead goes
first. With a filter or more than 100 it asks first; without a terminal say --yes. In a pipe stdout has the ids. Exit 9
if some were skipped, 6 if all were.
"""
ABOUT_PUBLISH = """Publish an event to every endpoint that subscribes to its type. Prints the ids of the webhooks.

\b
Examples:
  redrive webhook publish order.paid '{"order": 123}'
  redrive webhook publish order.paid - --id order-123-paid < order.json

DATA is JSON; - reads it from stdin. A repeat with the same --id adds nothing.
"""
ABOUT_TEST = """Send a test event to an endpoint, whatever it subscribes to. Prints the id of the webhook.

\b
Examples:
  redrive webhook send-test shop
"""
HEADER = ["ID", "ENDPOINT", "STATUS", "EVENT", "RECEIVED", "ATTEMPTS", "NOTE"]
PIPED = (
    *("id", "endpoint_id", "status", "event_type", "received_at", "attempts", "next_attempt_at", "delivered_at"),
    "error_message",
)
SHOWN = (*PIPED, "last_attempt_at", "signature_valid", "signature_error", "reason")
ANSWER_LINES = 5
BAD_SIGNATURE = "bad signature"


def send_again(choice: Choice, how: How, check: Callable[[Redrive], Awaitable[None]] | None = None) -> int:
    endpoints = endpoints_by_settings()

    async def send(app: Redrive, ids: list[str]) -> Amended:
        from redrive.webhooks.relay import Webhooks

        done = await Webhooks(app, endpoints(app)).replay(ids, reason=how.reason)
        return Amended(done.replayed, done.already, done.skipped)

    words = Words(
        "sent again", "Send {count} again?", "would send again", key="replayed", noun="webhook", none="0 webhooks match"
    )
    return act(how, Wish(choice, Replay("fresh", 0, False, ""), words, send, check=check, refused=not_ours))


@command(
    "list",
    ABOUT_LIST,
    click.option("--endpoint", metavar="ID", help="Of this endpoint."),
    click.option("--status", type=click.Choice(list(STATUSES)), help="In this state."),
    click.option("--since", metavar="DURATION|TIME", help="Received since then, as in 2h."),
    limit_option(),
    all_option,
    click.option("--cursor", metavar="C", help="Go on where an earlier list of the same ended."),
    lists=True,
)
def list_webhooks(
    *, endpoint: str | None, status: str | None, since: str | None, limit: int, every: bool, shape: Shape, **rest: Any
) -> None:
    most, store, endpoints = how_many(limit, every=every), rest["store"], endpoints_by_settings()
    where = f"{queues_of(endpoint or '*')} -disposition:trash {STATUSES[status] if status else ''}"
    where += "" if since is None else f" {since_filter(since, 'age')}"

    async def ask(app: Redrive) -> tuple[list[Webhook], str | None, Instant]:
        from redrive.app.internals import PAGE_LIMIT

        found: list[Webhook] = []
        at = rest["cursor"]
        while True:
            page = await app.find(where, limit=min(most - len(found), PAGE_LIMIT), cursor=at)
            found += [webhook_of(History(item)) for item in page]
            at = page.next
            if at is None or len(found) >= most:
                break
        if not found and endpoint is not None:
            await endpoints(app).get(endpoint)  # says so if there is none
        return found, at, (await app.tally(members=False)).at

    found, more, now = visit(store, ask)
    listing: Listing[Webhook] = Listing(
        key="id",
        as_object=webhook_object,
        table=lambda rows: (HEADER, [_row(each, now) for each in rows]),
        line=_line,
        none="no webhooks",
        inside="webhooks",
        every=EVERY,
        kind=lambda: Webhook(id="", endpoint_id="", status="pending", received_at=datetime.now(UTC)),
    )
    show_list(listing, found, shape, more=more)


def webhook_object(each: Webhook) -> dict[str, Any]:
    told = {name: getattr(each, name) for name in SHOWN}
    told["error_message"] = None if each.error_message is None else redact_text(each.error_message)
    told["event_type"] = each.event_type or redact_text(event_of(each.headers, each.payload))
    plain = {name: stamp(value) if isinstance(value, datetime) else value for name, value in told.items()}
    return {name: None if value == "" else value for name, value in plain.items()}


def _row(each: Webhook, now: Instant) -> list[str]:
    told = webhook_object(each)
    note = _error(told)
    if each.next_attempt_at is not None:
        wait = round(each.next_attempt_at.timestamp() * 1000) - now
        flag = f"{BAD_SIGNATURE}; " if each.signature_valid is False else ""
        note = f"{flag}next in {brief(wait)}" if wait > 0 else f"{flag}due"
    age = f"{brief(max(0, now - round(each.received_at.timestamp() * 1000)))} ago"
    return [
        short_id(each.id),
        each.endpoint_id,
        each.status,
        told["event_type"] or MISSING,
        age,
        str(each.attempts),
        note,
    ]


def _line(each: Webhook) -> list[str]:
    told = webhook_object(each)
    told["error_message"] = _error(told) or None
    return [MISSING if told[name] is None else str(told[name]) for name in PIPED]


def _error(told: dict[str, Any]) -> str:
    """With a mark where a bad signature was flagged."""
    flag = BAD_SIGNATURE if told["signature_valid"] is False else None
    return "; ".join(text for text in (flag, told["error_message"]) if text)


@command("show", ABOUT_SHOW, click.argument("id", metavar="ID"))
def show(*, id: str, as_json: bool, store: str) -> None:
    async def ask(app: Redrive) -> tuple[History, Webhook]:
        from redrive.webhooks.maintenance import notified

        history = await app.letters.get(id)
        if why := not_ours(history.item.queue):
            raise NotFound(f"{history.item.id}: {why.reason}")
        return history, webhook_of(history, notified=await notified(store_of(app), history.item))

    history, found = visit(store, ask)
    if as_json:
        write_json(_whole(history, found))
        return
    for line in _page(history, found):
        write(line)


def _whole(history: History, found: Webhook) -> dict[str, Any]:
    from redrive.cli.views import history_object

    shown = history_object(replace(history, item=replace(history.item, payload=found.payload)))
    kept = ("payload", "payload_encoding", "payload_bytes", "history", "history_omitted", "deeds")
    return {
        **webhook_object(found),
        "notification_sent": found.notification_sent,
        "blocked_by": found.blocked_by or None,
        "headers": [[name, redact({name: value})[name]] for name, value in found.headers],
        **{name: shown[name] for name in kept},
    }


def _page(history: History, found: Webhook) -> Iterator[str]:
    yield bold(f"webhook {clean(found.id)}")
    for name, value in webhook_object(found).items():
        if value is not None and name != "id":
            yield f"  {name.replace('_', ' '):<16}{clean(str(value))}"
    if found.blocked_by:
        yield f"  {'waits for':<16}{clean(found.blocked_by)}"
    yield from ("", bold("attempts"))
    for attempt in history.attempts:
        yield from _attempt(attempt)
    if history.omitted:
        yield f"  … {history.omitted:,} were left out of the middle"
    yield from ("", bold("headers"))
    yield from (f"  {clean(name)}: {clean(redact({name: value})[name])}" for name, value in found.headers)
    text, form = covered_payload(found.payload)
    yield from ("", bold(f"body, {len(found.payload):,} bytes, {form}"))
    yield from (f"  {clean(line)}" for line in text.split("\n"))


def _attempt(attempt: Attempt) -> Iterator[str]:
    """The status line of its answer, and the start of the body."""
    head, _, body = attempt.output.partition(b"\n\n")
    failure = redact_text(attempt.failure.text) if attempt.failure else attempt.note
    status = head.split(b"\n")[0].decode("utf-8", "replace") or failure or str(attempt.ending)
    yield clean(f"  {iso(attempt.started_at)}  {attempt.number}: {status}, {attempt.ran} ms, on {attempt.worker}")
    lines = covered_payload(body)[0].split("\n") if body else []
    yield from (f"      {clean(line[:200])}" for line in lines[:ANSWER_LINES])
    if len(lines) > ANSWER_LINES:
        yield "      …"


@click.command("replay", help=ABOUT_REPLAY, context_settings=HELP_NAMES)
@choice_options
@act_options("Say what would be sent, and send nothing.")
def replay(*, choice: Choice, how: How) -> int:
    if choice.is_set:
        own = f" ({choice.where})" if choice.where and choice.where.strip() else ""
        choice = Choice(where=queues_of() + own, view=choice.view)
    return send_again(choice, how)


@command(
    "publish",
    ABOUT_PUBLISH,
    click.argument("event_type", metavar="TYPE"),
    click.argument("data", metavar="[DATA | -]", default="null"),
    click.option("--id", metavar="ID", help="Of the event.  [default: a random one]"),
)
def publish(*, event_type: str, data: str, id: str | None, as_json: bool, store: str) -> None:
    body = read_json(read_stdin() if data == "-" else data, "DATA")
    made = with_relay(store, lambda relay: relay.publish(event_type, body, id=id))
    if as_json:
        write_json(made)
        return
    for each in made:
        write(clean(each))
    if not made:
        say(f"no endpoint subscribes to {event_type}; nothing is sent")


@command("send-test", ABOUT_TEST, click.argument("endpoint_id", metavar="ENDPOINT"))
def send_test(*, endpoint_id: str, as_json: bool, store: str) -> None:
    made = with_relay(store, lambda relay: relay.send_test(endpoint_id))
    if as_json:
        write_json({"id": made})
        return
    write(made)
    say(f"redrive webhook show {made} tells what becomes of it")
