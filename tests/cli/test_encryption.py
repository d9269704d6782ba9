"""Encrypted queues on the command line: keys from the environment, export, db keys and reencrypt."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Dead, Redrive
from redrive.cli.exits import Exit
from redrive.stores.keyring import Keyring
from tests.support.bound import with_app
from tests.support.cli import Told, here

pytestmark = [pytest.mark.usefixtures("on_store"), pytest.mark.slow]

OLD = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
NEW = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8="


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    return lambda *args: here(capsys, *args)


async def a_letter(app: Redrive) -> str:
    from redrive.app.internals import store_of

    store_of(app).use_keys(Keyring.parse(f"k1:{OLD}"))
    app.queue("cards", encrypt=True)

    @app.handler("cards")
    async def charge(number: str) -> None:
        raise Dead(f"declined {len(number)}")

    item_id = await app.enqueue("cards", {"number": "4111"})
    await app.run(until_idle=True)
    return item_id


def test_what_the_command_line_can_do_with_and_without_keys(
    tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = with_app(tmp_path, a_letter)
    assert "encrypt\ton" in run("queue", "show", "cards").out
    told = run("queue", "push", "cards", "--", '{"number": "4222"}')
    assert (told.code, "queue 'cards' is encrypted and this process has no encryption key" in told.err) == (2, True)
    assert "encrypted with key 'k1', which this process does not have" in run("letters", "show", item_id).out
    told = run("item", "edit", item_id, "--set", "number=5", "--reason", "typo")
    assert (told.code, "encrypted with key 'k1', which this process does not have" in told.err) == (Exit.USAGE, True)
    assert run("db", "reencrypt").code == Exit.USAGE
    assert run("db", "keys").out == "k1\t1\n"

    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", f"k2:{NEW},k1:{OLD}")
    assert run("config", "show", "--json").out.count(OLD[:6]) == 0
    assert '"number": "4111"' in run("letters", "show", item_id).out.replace('"number":"4111"', '"number": "4111"')
    told = run("letters", "export", "-")
    assert json.loads(told.out)["payload_key"] == "k1"
    assert "1 stayed encrypted (--decrypt writes them in clear)" in told.err
    told = run("letters", "export", "-", "--decrypt")
    assert (json.loads(told.out)["payload"], json.loads(told.out)["payload_key"]) == ({"number": "4111"}, None)
    told = run("db", "reencrypt", "--queue", "cards")
    assert (told.code, told.out, told.err) == (Exit.DONE, "k2\t1\n", "re-encrypted 1\n")
    assert json.loads(run("db", "keys", "--json").out)["keys"] == {"k2": 1}
    line = json.loads(run("audit", "list", "--json").out)[-1]
    assert (line["act"], line["reason"], line["changed"]) == ("reencrypt", "encrypted with key k2", [item_id])
