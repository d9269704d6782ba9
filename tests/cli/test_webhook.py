"""`redrive webhook …` on real stores: endpoints, tokens, webhooks, and what is refused."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from redrive import Keyring
from redrive.cli.exits import Exit
from redrive.webhooks import Relay
from redrive.webhooks.model import Envelope
from redrive.webhooks.settings import WebhookSettings
from tests.support.cli import Told, here, letters_in, made_in, on_terminal
from tests.support.target import Target, target

__all__ = ["target"]
pytestmark = pytest.mark.usefixtures("on_store")
KEY = "a" * 43 + "="
KEYS = f"k1:{KEY}"
SECRET = "wh-s3cret"  # noqa: S105 - not one of anybody's
ENDPOINT = ("webhook", "endpoint")
SHOP = "https://shop.example/hooks"


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", KEYS)
    monkeypatch.setenv("REDRIVE_WEBHOOKS_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("REDRIVE_ACTOR", "ann")


def sent(folder: Path, **endpoints: str) -> list[str]:
    """One webhook to an endpoint of each id and URL, delivered as far as it goes at once. Their ids."""

    async def send() -> list[str]:
        relay = Relay(made_in(folder), allow=["127.0.0.0/8"], log=False, encryption=Keyring.parse(KEYS, field="keys"))
        async with relay:
            ids = []
            for name, url in endpoints.items():
                endpoint = (await relay.endpoints.create(url, id=name)).endpoint
                headers = (("Authorization", "Basic c2VjcmV0"), ("X-Team", "shop"))
                ids.append(str(await relay.receive(endpoint, Envelope(b'{"n": 1, "password": "p4ss"}', headers))))
            await relay.run(until_idle=True)
            return ids

    return asyncio.run(send())


def test_an_endpoint_from_its_creation_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = here(capsys, *ENDPOINT, "create", SHOP, "--id", "shop", "--header", "X-Team=shop", "--retry-on", "404")
    assert (made.code, made.out, made.err) == (Exit.DONE, "shop\n", "")
    options = ("--rate", "10/s", "--order", "block", "--timeout", "5s", "--retry", '{"max_attempts": 3}', "--breaker")
    more = ("--max-age", "1d", "--disable-after", "none", "--name", "the shop", "--fail-on", "5xx", "--header", "none")
    told = here(capsys, *ENDPOINT, "update", "shop", *options, *more, "--json")
    changed = json.loads(told.out)
    assert (changed["rate"], changed["order"], changed["timeout"], changed["breaker"]) == ("10/s", "block", 5.0, True)
    assert (changed["max_age"], changed["disable_after"], changed["name"]) == (86_400.0, None, "the shop")
    assert (changed["headers"], changed["retry_on"], changed["fail_on"]) == ({}, ["404"], ["5xx"])
    assert json.loads(changed["retry"])["max_attempts"] == 3
    assert here(capsys, *ENDPOINT, "list").out == f"shop\tactive\tdirect\tblock\t0\t0\t{SHOP}\n"
    assert here(capsys, *ENDPOINT, "mute", "shop", "--reason", "it moves").err == "shop is muted\n"
    shown = here(capsys, *ENDPOINT, "show", "shop").out
    assert "status\tmuted\n" in shown
    assert "status reason\tit moves\n" in shown
    assert "timeout\t5s\n" in shown
    assert here(capsys, *ENDPOINT, "unmute", "shop").err == "shop is active\n"
    assert here(capsys, *ENDPOINT, "disable", "shop").code == Exit.USAGE
    assert here(capsys, *ENDPOINT, "disable", "shop", "--reason", "x", "--json").code == Exit.DONE
    assert here(capsys, *ENDPOINT, "enable", "shop").err == "shop is active\n"
    assert "enabled" in here(capsys, "audit", "list").out
    refused = here(capsys, *ENDPOINT, "delete", "shop", "--reason", "closed")
    assert (refused.code, "endpoint shop would be deleted, and 0 webhooks" in refused.err) == (Exit.REFUSED, True)
    assert here(capsys, *ENDPOINT, "delete", "shop", "--reason", "closed", "--dry-run").code == Exit.DONE
    assert here(capsys, *ENDPOINT, "delete", "shop", "--reason", "closed", "--yes").err == "deleted shop, cancelled 0\n"
    assert here(capsys, *ENDPOINT, "list", "-q").out == ""
    audit = json.loads(here(capsys, "audit", "list", "--json").out)
    assert ("ann", "closed") in [(each["actor"], each["reason"]) for each in audit]


def test_secrets_are_stored_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create = (*ENDPOINT, "create", SHOP, "--id", "shop", "--provider", "hmac", "--secret-file", "-")
    verification = ("--verification", "header=X-Sign", "--verification", "tolerance=60")
    made = here(capsys, *create, *verification, "--verification", "timestamp_header=X-Time", text=f"{SECRET}\n")
    assert (made.code, made.out) == (Exit.DONE, "shop\n"), made.err
    whole = here(capsys, *ENDPOINT, "show", "shop", "--json").out
    shown = json.loads(whole)
    assert (shown["provider"], shown["has_secrets"], shown["verification"]["tolerance"]) == ("hmac", True, 60)
    assert (
        here(capsys, *ENDPOINT, "update", "shop", "--provider", "github", "--secret-file", "-", text="a\nb\n").code == 0
    )
    published = here(capsys, *ENDPOINT, "create", SHOP, "--id", "erp", "--event", "order.*")
    name, secret = published.out.rstrip("\n").split("\t")
    assert (name, secret[:6]) == ("erp", "whsec_")
    assert published.err == "the secret signs what is published to it; it is not shown again\n"
    public = here(capsys, *ENDPOINT, "create", SHOP, "--id", "pair", "--event", "order.*", "--signing", "ed25519")
    again = here(capsys, *ENDPOINT, "rotate-secret", "pair")
    assert public.err == again.err == "receivers verify with this public key; it is not shown again\n"
    rotated = here(capsys, *ENDPOINT, "rotate-secret", "erp", "--overlap", "1h").out.strip()
    assert rotated != secret
    everything = whole + here(capsys, *ENDPOINT, "list", "--json").out + here(capsys, *ENDPOINT, "show", "erp").out
    assert not [each for each in (SECRET, secret, rotated) if each in everything]


def test_a_webhook_that_failed_is_listed_shown_and_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Target
) -> None:
    target.body = b'{"error": "no such order", "token": "t0p"}'
    fine, failed = sent(tmp_path, ok=f"{target.url}/200", no=f"{target.url}/404")
    rows = [line.split("\t") for line in here(capsys, "webhook", "list").out.splitlines()]
    assert [row[:3] for row in rows] == [[failed, "no", "failed"], [fine, "ok", "delivered"]]
    assert rows[0][-1] == "the endpoint answered 404"
    assert here(capsys, "webhook", "list", "--endpoint", "ok", "-q").out == f"{fine}\n"
    assert here(capsys, "webhook", "list", "--status", "pending", "--since", "1h").out == ""
    shown = here(capsys, "webhook", "show", failed).out
    assert ": HTTP 404, " in shown
    assert '"error": "no such order"' in shown
    assert "X-Team: shop" in shown
    assert not [secret for secret in ("c2VjcmV0", "p4ss", "t0p") if secret in shown]
    whole = json.loads(here(capsys, "webhook", "show", failed[:8], "--json").out)
    assert (whole["status"], whole["payload"]["n"], len(whole["history"])) == ("failed", 1, 1)
    assert whole["history"][0]["output"].startswith("HTTP 404\n")
    told = here(capsys, *ENDPOINT, "show", "no").out
    assert "failed\t1\n" in told
    assert "success rate\t0.0%\n" in told
    assert re.search(r"^last failure noted at\t\d{4}-", told, re.MULTILINE)
    assert json.loads(here(capsys, *ENDPOINT, "show", "no", "--json").out)["failed_at"].startswith("20")
    nothing = here(capsys, "webhook", "replay", "--where", "queue:emails", "--reason", "x")
    assert (nothing.code, nothing.err) == (Exit.DONE, "0 webhooks match\n")
    assert here(capsys, "webhook", "list", "--since", "2020-01-01T00:00Z", "-q").out == f"{failed}\n{fine}\n"
    assert here(capsys, "webhook", "list", "--since", "2999-01-01", "-q").out == ""
    dry = here(capsys, "webhook", "replay", "--where", "died<1h", "--reason", "x", "--dry-run")
    assert (dry.code, dry.out) == (Exit.DONE, f"{failed}\n")
    assert "column" in here(capsys, "webhook", "replay", "--where", "died<", "--reason", "x").err
    assert here(capsys, "webhook", "replay", "--all", "--reason", "x").code == Exit.REFUSED
    assert here(capsys, "webhook", "replay", failed, "--reason", "mended").out == f"{failed}\n"
    assert here(capsys, "webhook", "list", "--status", "pending", "-q").out == f"{failed}\n"
    assert here(capsys, "webhook", "replay", fine, "--reason", "x").code == Exit.CONFLICT


def test_a_letter_of_another_queue_is_skipped_by_a_replay_of_webhooks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Target
) -> None:
    (failed,) = sent(tmp_path, no=f"{target.url}/404")
    (letter,) = letters_in(tmp_path, "a")
    for more in (("--dry-run",), ()):
        told = here(capsys, "webhook", "replay", letter, failed, "--reason", "mended", *more)
        assert (told.code, told.out) == (Exit.PARTLY, f"{failed}\n")
        assert f"skipped {letter}: it is an item of queue" in told.err
    assert here(capsys, "letters", "list", "-q").out == f"{letter}\n"


def test_a_webhook_is_listed_with_its_event_and_a_bad_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def receive() -> str:
        async with Relay(made_in(tmp_path), log=False) as relay:
            endpoint = (await relay.endpoints.create(SHOP, id="shop")).endpoint
            why, headers = "X-Hub-Signature-256 does not match", (("X-GitHub-Event", "issues"),)
            envelope = Envelope(b"{}", headers, signature_valid=False, signature_error=why)
            return str(await relay.receive(endpoint, envelope))

    made = asyncio.run(receive())
    row = here(capsys, "webhook", "list").out.rstrip("\n").split("\t")
    assert (row[0], row[3], row[-1]) == (made, "issues", "bad signature")
    assert "bad signature; " in on_terminal("webhook", "list", cwd=tmp_path).out
    shown = here(capsys, "webhook", "show", made).out
    assert "event type      issues\n" in shown
    assert "signature error X-Hub-Signature-256 does not match\n" in shown


def test_recover_sends_what_failed_since(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Target) -> None:
    failed, other = sent(tmp_path, no=f"{target.url}/404", other=f"{target.url}/410")
    recover = (*ENDPOINT, "recover", "no", "--reason", "mended")
    assert here(capsys, *recover, "--since", "1h").code == Exit.REFUSED
    assert here(capsys, *recover, "--since", "2020-01-01T00:00Z", "--dry-run").out == f"{failed}\n"
    assert here(capsys, *recover, "--since", "1h", "--yes", "--json").code == Exit.DONE
    assert here(capsys, "webhook", "list", "--status", "failed", "-q").out == f"{other}\n"
    assert "status\tdisabled\n" in here(capsys, *ENDPOINT, "show", "other").out, "it answered 410"


def test_which_webhook_holds_up_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Target) -> None:
    async def send() -> list[str]:
        async with Relay(made_in(tmp_path), allow=["127.0.0.0/8"], log=False) as relay:
            endpoint = (await relay.endpoints.create(f"{target.url}/404", id="no", order="block")).endpoint
            ids = [str(await relay.receive(endpoint, Envelope(b"{}"))) for _ in range(3)]
            await relay.run(until_idle=True)
            return ids

    first, *_ = asyncio.run(send())
    blocked = json.loads(here(capsys, *ENDPOINT, "show", "no", "--json").out)["blocked"]
    assert (blocked["by"], blocked["webhooks"]) == (first, 2)
    shown = here(capsys, *ENDPOINT, "show", "no").out
    assert f"blocked\t{first} holds up 2: it died" in shown
    assert f"(the endpoint answered 404); replay or discard it: redrive webhook replay {first}, redrive" in shown
    on_screen = on_terminal(*ENDPOINT, "show", "no", cwd=tmp_path)
    assert "endpoint no" in on_screen.out


def test_events_are_published_and_tests_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here(capsys, *ENDPOINT, "create", SHOP, "--id", "erp", "--event", "order.*")
    made = here(capsys, "webhook", "publish", "order.paid", "-", "--id", "o1", text='{"n": 1}').out.strip()
    assert made == "o1_erp"
    assert here(capsys, "webhook", "publish", "order.paid", '{"n": 1}', "--id", "o1", "--json").code == Exit.DONE
    nobody = here(capsys, "webhook", "publish", "user.new")
    assert (nobody.out, nobody.err) == ("", "no endpoint subscribes to user.new; nothing is sent\n")
    tested = here(capsys, "webhook", "send-test", "erp")
    assert f"redrive webhook show {tested.out.strip()} tells" in tested.err
    rows = [line.split("\t") for line in here(capsys, "webhook", "list", "--status", "pending").out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [(tested.out.strip(), "redrive.test"), ("o1_erp", "order.paid")]
    bodies = [json.loads(here(capsys, "webhook", "show", row[0], "--json").out)["payload"] for row in rows]
    assert [sorted(body) for body in bodies] == [["data", "timestamp", "type"]] * 2


def test_tokens_are_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here(capsys, *ENDPOINT, "create", "--id", "inside", "--via", "hub")
    text = here(capsys, "webhook", "token", "create", "warehouse", "--endpoint", "inside").out.strip()
    assert text.startswith("rdh_")
    listed = here(capsys, "webhook", "token", "list").out
    token, name, endpoints, _, revoked = listed.rstrip("\n").split("\t")
    assert (name, endpoints, revoked) == ("warehouse", "inside", "-")
    assert text.split("_", 2)[2] not in listed + here(capsys, "webhook", "token", "list", "--json").out
    assert here(capsys, "webhook", "token", "revoke", token, "--reason", "lost").err == f"revoked {token}\n"
    assert json.loads(here(capsys, "webhook", "token", "list", "--json").out)[0]["revoked_at"] is not None
    assert here(capsys, "webhook", "hubs").out == ""


BAD: list[tuple[tuple[str, ...], Exit, str]] = [
    (("endpoint", "create", "ftp://x"), Exit.USAGE, "url: 'ftp://x' is not an http or https URL"),
    (
        ("endpoint", "create", "http://10.0.0.1"),
        Exit.USAGE,
        "10.0.0.1 is not public (private) (use a public address, or allow its network: allow under [webhooks] in",
    ),
    (("endpoint", "create", "https://u:p@x.example"), Exit.USAGE, "give the secret as --header Authorization=..."),
    (("endpoint", "create", "--id", "x"), Exit.USAGE, "URL: an endpoint needs a URL (give one; with --via hub"),
    (
        ("endpoint", "create", SHOP, "--id", "shop"),
        Exit.CONFLICT,
        "endpoint shop exists already (update it with redrive webhook endpoint update shop, or",
    ),
    (("endpoint", "create", SHOP, "--id", "a b"), Exit.USAGE, "--id: 'a b' is not an id"),
    (("endpoint", "create", SHOP, "--via", "post"), Exit.USAGE, "--via: must be direct or hub"),
    (("endpoint", "create", SHOP, "--order", "fifo"), Exit.USAGE, "--order: must be one of skip, block, park, none"),
    (("endpoint", "create", SHOP, "--rate", "fast"), Exit.USAGE, "--rate: 'fast'"),
    (("endpoint", "create", SHOP, "--rate", "fast"), Exit.USAGE, '"5 per 10s" or "100/min burst 20")'),
    (("endpoint", "create", SHOP, "--timeout", "0s"), Exit.USAGE, "--timeout: "),
    (("endpoint", "create", SHOP, "--concurrency", "0"), Exit.USAGE, "--concurrency: "),
    (("endpoint", "create", SHOP, "--concurrency", "5"), Exit.USAGE, "--concurrency: order='skip' sends one at a time"),
    (("endpoint", "create", SHOP, "--fail-on", "2xx"), Exit.USAGE, "--fail-on: 2xx is a success"),
    (("endpoint", "create", SHOP, "--retry", "often"), Exit.USAGE, "--retry: 'often' is not a policy as data"),
    (("endpoint", "create", SHOP, "--retry", '{"max": 1}'), Exit.USAGE, "--retry: "),
    (("endpoint", "create", SHOP, "--retry-on", "40x"), Exit.USAGE, "--retry-on: '40x' is not a status"),
    (("endpoint", "create", SHOP, "--header", "X-Team"), Exit.USAGE, "--header: 'X-Team' has no name or no ="),
    (("endpoint", "create", SHOP, "--header", "Host=x"), Exit.USAGE, "--header: Host is set by redrive"),
    (("endpoint", "create", SHOP, "--provider", "gitub"), Exit.USAGE, "--provider: no provider is called 'gitub'"),
    (("endpoint", "create", SHOP, "--provider", "github"), Exit.USAGE, "--secret: github needs a secret"),
    (("endpoint", "create", SHOP, "--provider", "github", "--secret"), Exit.USAGE, "--secret: there is no terminal"),
    (("endpoint", "create", SHOP, "--secret-file", "nowhere"), Exit.USAGE, "--secret-file: nowhere cannot be read: No"),
    (("endpoint", "create", SHOP, "--verification", "heder=X"), Exit.USAGE, "--verification heder: no such option"),
    (
        ("endpoint", "create", SHOP, "--verification", "header=X"),
        Exit.USAGE,
        "--verification header: none does not take",
    ),
    (("endpoint", "update", "shop"), Exit.USAGE, "say what to change"),
    (("endpoint", "update", "shop", "--event", "a.*"), Exit.USAGE, "redrive webhook endpoint rotate-secret shop"),
    (("endpoint", "show", "shp"), Exit.NOT_FOUND, "no endpoint 'shp'"),
    (("endpoint", "recover", "shp", "--since", "1h", "--reason", "x", "--yes"), Exit.NOT_FOUND, "no endpoint 'shp'"),
    (("endpoint", "recover", "shop", "--since", "soon", "--reason", "x", "--yes"), Exit.USAGE, "--since: 'soon'"),
    (("list", "--endpoint", "shp"), Exit.NOT_FOUND, "no endpoint 'shp'"),
    (("list", "--since", "soon"), Exit.USAGE, "--since: 'soon' is neither a duration nor a time"),
    (("list", "--status", "lost"), Exit.USAGE, "--status"),
    (("show", "nowhere"), Exit.NOT_FOUND, "nowhere"),
    (("replay", "--reason", "x"), Exit.USAGE, "--where"),
    (("publish", "a b"), Exit.USAGE, "'a b' is not a type of event"),
    (("publish", "a", "{"), Exit.USAGE, "DATA: it is not JSON"),
    (("publish", "a", "1", "--id", "a.b"), Exit.USAGE, "--id: 'a.b' is not an id of an event"),
    (("publish", "a", "1", "--id", "a:b"), Exit.USAGE, "use 1 to 63 of A-Z a-z 0-9"),
    (("send-test", "shp"), Exit.NOT_FOUND, "no endpoint 'shp'"),
    (("token", "create", "t", "--endpoint", "shop"), Exit.USAGE, "is not delivered to by hubs"),
    (("token", "revoke", "0", "--reason", "x"), Exit.NOT_FOUND, "no token '0'"),
    (("run", "--http", "8080"), Exit.USAGE, "--http: '8080' is not an address to listen on (use HOST:PORT"),
    (("run", "--allow", "lan"), Exit.USAGE, "--allow: 'lan' is not a network"),
    (("run", "--concurrency", "0"), Exit.USAGE, "--concurrency: "),
    (("edge",), Exit.USAGE, "--http: no address to receive at"),
    (("edge", "--http", "x:1", "--max-body", "0"), Exit.USAGE, "--max-body: nothing would fit"),
    (("hub", "--edge", "x"), Exit.USAGE, "--token: there is no token (set REDRIVE_HUB_TOKEN"),
    (("hub", "--edge", "x", "--token", "t"), Exit.USAGE, "'x' is not an http or https URL"),
    (("hub", "--edge", "http://x", "--token", "t", "--token-file", "f"), Exit.USAGE, "not both"),
    (("hub", "--edge", "http://x", "--token", "t", "--destination", "a"), Exit.USAGE, "--destination: 'a' has no name"),
    (("listen", "--forward", "localhost:3000"), Exit.USAGE, "--forward: "),
]


def test_bad_input_is_told_with_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here(capsys, *ENDPOINT, "create", SHOP, "--id", "shop")
    for args, code, said in BAD:
        told = here(capsys, "webhook", *args)
        assert (told.code, told.out) == (code, ""), (args, told)
        assert said in told.err, (args, told.err)
    assert here(capsys, *ENDPOINT, "list", "-q").out == "shop\n", "nothing of it was made"


def test_without_keys_there_are_no_secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_ENCRYPTION_KEYS")
    told = here(capsys, *ENDPOINT, "create", SHOP, "--provider", "github", "--secret-file", "-", text=SECRET)
    assert (told.code, "set REDRIVE_ENCRYPTION_KEYS=k1:KEY; a new KEY: python -c" in told.err) == (Exit.USAGE, True)
    assert SECRET not in told.err


def test_the_settings_are_those_of_a_relay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "redrive.toml").write_text('[webhooks]\nhttp = "[::1]:8080"\nkeep = "1d"\nretention = "seed"\n')
    told = here(capsys, "config", "show", "--origin").out
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in told.splitlines()}
    assert rows["webhooks.http"] == ["[::1]:8080", str(tmp_path / "redrive.toml")]
    assert rows["webhooks.allow"] == ["127.0.0.0/8", "environment REDRIVE_WEBHOOKS_ALLOW"]
    assert rows["webhooks.max_body"] == ["10485760", "default"]
    (tmp_path / "redrive.toml").write_text('[webhooks]\nhttp = "8080"\nallow = ["lan"]\nretention = "no"\nkeep = "x"\n')
    told = here(capsys, "config", "check").out
    faults = [line for line in told.splitlines() if line.startswith("webhooks")]
    assert [fault.partition(":")[0] for fault in faults] == [
        f"webhooks.{name}" for name in ("http", "keep", "retention")
    ]
    relay = Relay(log=False)
    assert relay.max_body == WebhookSettings().max_body


def test_what_is_not_installed_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "starlette" or each == "redrive.webhooks.hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    told: Told = here(capsys, "webhook", "hubs")
    assert (told.code, "pip install 'redrive[webhooks]'" in told.err) == (Exit.USAGE, True)
