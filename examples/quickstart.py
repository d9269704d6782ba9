"""Some mail fails, becomes a dead letter, and is sent again once the cause is gone."""

import asyncio
import tempfile

from redrive import Policy, Redrive, constant

app = Redrive(f"sqlite:///{tempfile.mkdtemp()}/redrive.db")
mail_server_is_up = False


@app.handler("emails", policy=Policy(backoff=constant("100ms"), max_attempts=3))
async def send(to: str, subject: str) -> str:
    if to.endswith("@example.org") and not mail_server_is_up:
        raise ConnectionError("mail server of example.org does not answer")
    return f"sent {subject!r} to {to}"


async def main() -> None:
    global mail_server_is_up  # noqa: PLW0603 - the shortest way to repair a pretended mail server
    async with app:
        ids = [await app.enqueue("emails", {"to": f"{who}@example.org", "subject": "hi"}) for who in ("ann", "bob")]
        await app.run(until_idle=True)
        for item in await app.letters.find("queue:emails error:ConnectionError"):
            print(f"dead letter {item.id[:8]} after {item.errors} errors")
        mail_server_is_up = True
        await app.letters.replay("queue:emails", reason="mail server is back")
        await app.run(until_idle=True)
        for item_id in ids:
            print(await app.wait(item_id))


if __name__ == "__main__":
    asyncio.run(main())
