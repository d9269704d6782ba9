"""Options and helpers of the receipt commands: the target, the tenant, the queue, the configured receipts.json."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.access import settings, upkeep_of
from redrive.cli.incoming import incoming
from redrive.cli.output import counted, say
from redrive.errors import ConfigError
from redrive.receipts.settings import ReceiptSettings

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.receipts.client import ReceiptClient
    from redrive.receipts.dead_letters import DeadLetterQueue, Imported

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
TOKEN_LIMIT = 64 * 1024
FAULTS = 20


def queue_option(command: F) -> F:
    return click.option("--queue", metavar="QUEUE", help="Where receipts wait.  [default: receipts]")(command)


def tenant_option(command: F) -> F:
    return click.option("--tenant", metavar="NAME", help="For whom; those in the store keep theirs.")(command)


def target_options(command: F) -> F:
    """A token is not a flag: a list of processes would show it."""
    for option in reversed(_TARGET):
        command = option(command)
    return queue_option(tenant_option(command))


_TARGET = (
    click.option("--endpoint", metavar="URL", help="The target; also REDRIVE_RECEIPTS_ENDPOINT or redrive.toml."),
    click.option("--transport", metavar="WORD", help="mcp or http.  [default: mcp]"),
    click.option("--timeout", metavar="DURATION", help="How long one attempt may take.  [default: 30s]"),
    click.option("--token-file", metavar="FILE", help="Has the bearer token; also REDRIVE_RECEIPTS_AUTH_TOKEN[_FILE]."),
)


def chosen(**flags: object) -> ReceiptSettings:
    """The settings in force; `flags` are named without their section."""
    token_file = flags.pop("token_file", None)
    if token_file is not None:
        flags["auth_token"] = _token(str(token_file))
    return settings(**{f"receipts.{name}": value for name, value in flags.items()}).section(ReceiptSettings)


def _token(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")[:TOKEN_LIMIT].strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path} cannot be read: {why}", field="--token-file", hint="a file with the token") from None
    if not text:
        raise ConfigError(f"{path} is empty", field="--token-file", hint="a file with the token, and nothing else")
    return text


def check_endpoint(receipts: ReceiptSettings) -> None:
    if receipts.endpoint is None:
        hint = "use --endpoint URL, set REDRIVE_RECEIPTS_ENDPOINT, or write endpoint under [receipts] in redrive.toml"
        raise ConfigError("no endpoint is configured", field="--endpoint", hint=hint)


def with_client(
    store: str,
    receipts: ReceiptSettings,
    ask: Callable[[ReceiptClient], Awaitable[T]],
    *,
    work: bool,
    make: bool = False,
) -> T:
    """Call `ask` with a client; `work`: one that delivers what waits. The store must exist, unless `make`."""
    check_endpoint(receipts)
    with incoming():
        import asyncio

        from redrive.app.internals import parts_of
        from redrive.receipts.client import ReceiptClient

    upkeep, given = upkeep_of(store), settings()
    client = ReceiptClient(
        receipts.endpoint,
        store,
        transport=receipts.transport,
        auth_token=receipts.auth_token,
        tenant_id=receipts.tenant,
        max_receipt_retries=receipts.max_retries,
        backoff_base=receipts.backoff_base,
        timeout=f"{receipts.timeout}ms",
        queue=receipts.queue,
        work=work,
        actor=given.actor,
        log=False,
    )
    if work:
        parts_of(client.app).load_alerts(given.alerts)

    async def asked() -> T:
        if not make:
            await upkeep.check_is_there()
        async with client:
            letters = await take_in(client.app, receipts)
            answer = await ask(client)
            await update_file(client.app, receipts, letters)
            return answer

    return asyncio.run(asked())


async def check_there(app: Redrive, queue: str | None) -> None:
    """Raises UnknownQueue for a queue that --queue names and that does not exist."""
    if queue is not None:
        from redrive.cli.queue import row_of as known

        known((await app.tally()).queues, queue)


async def take_in(app: Redrive, receipts: ReceiptSettings) -> DeadLetterQueue:
    """The dead letter queue, after the import of a configured receipts.json."""
    from redrive.receipts.dead_letters import DeadLetterQueue

    queue = DeadLetterQueue.of(app, queue=receipts.queue, tenant_id=receipts.tenant, storage_path=receipts.file)
    done = await queue.load_file()
    if done is not None:
        say(f"took in {len(done.added):,} from {receipts.file}")
        say_faults(done)
    return queue


async def update_file(app: Redrive, receipts: ReceiptSettings, letters: DeadLetterQueue) -> None:
    """Write the configured receipts.json, unless another process keeps it current."""
    from redrive.receipts.receipts_file import ReceiptsFile

    if receipts.file is not None:
        file = ReceiptsFile(app, receipts.queue, Path(receipts.file), letters.load)
        await file.open()
        await file.close()


def say_waiting(waiting: int, queue: str) -> None:
    """Report receipts that a killed client has left behind: neither dead letters nor delivered."""
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        where = "" if queue == ReceiptSettings().queue else f" --queue {shlex.quote(queue)}"
        how = f"redrive receipts send --waiting{where} does that, and so does any client that is opened"
        say(f"{counted(waiting, 'receipt')} {verb} to be delivered: {how}")


def say_faults(done: Imported) -> None:
    for fault in done.faults[:FAULTS]:
        say(str(fault))
    if done.faults:
        where = "" if done.aside is None else f"; a copy of the file is {done.aside}"
        say(f"{counted(len(done.faults), 'fault')}{where}")
