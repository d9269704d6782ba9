"""S1 to S10 where webhooks are concerned: what may be dialled, what is sent, and what never shows. Loopback only."""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks

from redrive import Keyring
from redrive.app.internals import store_of
from redrive.core import codec
from redrive.core.verbs import DocumentWrite
from redrive.errors import BadSignature, ConfigError
from redrive.net import signing
from redrive.net.http import Tls
from redrive.stores.clock import SystemClock
from redrive.webhooks import HubRefused, Relay
from redrive.webhooks.model import ENDPOINT, Endpoint, Envelope
from tests.support.listening import HOST
from tests.webhooks.certificates import DAY, Authority, outdated
from tests.webhooks.delivering import Delivering, delivering
from tests.webhooks.receiver import Seen, receiving, status
from tests.webhooks.serving import post

CANARY = "c4n4ry-in-a-coal-mine"
KEYS = Keyring({"k1": b64encode(bytes(32)).decode()}, current="k1")


async def sent(work: Delivering, url: str, **options: Any) -> tuple[str, str]:
    """The status and the error of a webhook after its first attempt."""
    made = await work.relay.endpoints.create(url, **options)
    webhook = await work.relay.receive(made.endpoint, Envelope(b"{}"))
    await work.ended(webhook)
    found = await work.relay.webhooks.get(webhook)
    return found.status, found.error_message or ""


# --- S1 to S4: what may be dialled -----------------------------------------------------------------------------------

LITERALS = """
127.0.0.1 127.1 127.0.1 0 0.0.0.0 2130706433 017700000001 0177.0.0.1 10.0.0.1 100.64.0.1 169.254.169.254 172.16.0.1
192.168.0.1 192.0.2.1 198.18.0.1 224.0.0.1 255.255.255.255 127.0.0.1. [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1]
[::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::a9fe:a9fe] [2002:7f00:1::] [2001::1] [fc00::1] [fe80::1] [fe80::1%25lo]
[ff02::1] [fd00:ec2::254] 168.63.129.16
""".split()  # noqa: SIM905 - a table
NAMES = """
localhost localhost. LOCALHOST 0x7f000001 0x7f.1 0x7f.0.0.1 127.0.0.0x1 ip6-localhost ①②⑦.⓪.⓪.① \uff11\uff12\uff17.0.0.1
127。0。0。1 [v1.x] localhost%00 127.0.0.1%2f@8.8.8.8 127.0.0.1%20
""".split()  # noqa: SIM905 - a table
NO_URLS = [
    "",
    "hooks",
    "//target.example/in",
    "ftp://target.example/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "data:text/plain,x",
    "javascript:1",
    "http://",
    "http://:80/",
    "http://target.example:0/",
    "http://target.example:99999/",
    "http://ann:secret@target.example/",
    "http://8.8.8.8@127.0.0.1/",
    "http://127.0.0.1\\@8.8.8.8/",
    "http://tar\tget.example/",
    "http://target.example/\r\nX-Evil: 1",
    "http://target.example\0/",
    "http://[::1/",
    "http://tar get.example/",
    7,
]


@pytest.mark.parametrize("url", [*NO_URLS, *(f"http://{host}/" for host in LITERALS)], ids=str)
async def test_s1_s2_a_private_address_and_what_is_no_url_are_refused_when_saved(url: Any) -> None:
    async with Relay("memory:", log=False) as relay:
        await relay.endpoints.create("https://target.example/", id="known")
        for saving in (relay.endpoints.create(url), relay.endpoints.update("known", url)):
            with pytest.raises(ConfigError, match=r"^url: ") as caught:
                await saving
            assert "ann:secret" not in str(caught.value)
        assert [each.url for each in await relay.endpoints.list()] == ["https://target.example/"]


@pytest.mark.parametrize("host", NAMES)
async def test_s2_a_name_of_this_machine_fails_when_it_is_sent(host: str) -> None:
    async with receiving() as canary, delivering(allow=()) as work:
        try:
            status, said = await sent(work, canary.url("in", host=host))
        except ConfigError:
            status, said = "failed", "refused"
        assert canary.seen == {}
    assert said
    assert status in ("failed", "pending")


async def test_s1_a_network_that_is_allowed_is_reached() -> None:
    """The canary of the tests above can be hit."""
    async with receiving() as canary, delivering() as work:
        assert (await sent(work, canary.url("in")))[0] == "delivered"
        assert len(canary.seen["in"]) == 1


async def test_s3_the_address_of_a_name_is_judged_at_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[HOST], ["8.8.8.8", "10.0.0.1"]])

    async def resolve(_: object, host: str, port: int = 0, family: object = None) -> list[dict[str, object]]:
        found = [{"hostname": host, "host": each, "port": port, "family": 2, "proto": 0} for each in next(answers)]
        return [{**each, "flags": socket.AI_NUMERICHOST} for each in found]

    monkeypatch.setattr("aiohttp.ThreadedResolver.resolve", resolve)
    async with receiving({"in": (status(500),)}) as target, delivering() as work:
        made = await work.relay.endpoints.create(target.url("in", host="rebound.example"))
        webhook = await work.relay.receive(made.endpoint, Envelope(b"{}"))
        await work.ended(webhook)
        work.clock.advance("1s")
        await work.ended(webhook, times=2)
        found = await work.relay.webhooks.get(webhook)
    assert len(target.seen["in"]) == 1
    assert target.seen["in"][0]["Host"].startswith("rebound.example:")
    said = "rebound.example leads to 10.0.0.1, which is not public (private)"
    assert (found.status, said in (found.error_message or "")) == ("failed", True)


@pytest.mark.parametrize("number", [301, 302, 303, 307, 308])
async def test_s4_a_redirect_leads_nowhere(number: int) -> None:
    async with receiving() as inner:
        moved = status(number, f"Location: {inner.url('in')}", f"Refresh: 0; url={inner.url('in')}")
        async with receiving({"in": (moved,)}) as outer, delivering() as work:
            assert (await sent(work, outer.url("in")))[0] == "failed"
        assert inner.seen == {}


async def test_s4_proxies_of_the_environment_are_ignored_and_one_that_is_configured_must_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{HOST}:9")
    async with receiving() as target, delivering() as work:
        assert (await sent(work, target.url("in")))[0] == "delivered"
    with pytest.raises(ConfigError, match=r"^proxy: the addresses that a proxy dials cannot be checked"):
        Relay("memory:", proxy="http://proxy.example:3128", log=False)
    async with receiving() as proxy, delivering(allow=(), proxy=proxy.url(), proxy_filters=True) as work:
        assert (await sent(work, "http://target.example/in"))[0] == "delivered"
        ((seen,),) = proxy.seen.values()
        assert seen["Host"] == "target.example"


# --- S5: TLS ---------------------------------------------------------------------------------------------------------

BAD_TLS = {
    "expired": "certificate has expired",
    "not yet valid": "certificate is not yet valid",
    "self-signed": "self-signed certificate",
    "wrong name": "IP address mismatch",
    "unknown authority": "unable to get local issuer certificate",
    "TLS 1.1": "",
}


@pytest.mark.parametrize("wrong", ["", *BAD_TLS])
async def test_s5_a_bad_certificate_gets_no_webhook(wrong: str, tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    contexts: dict[str, Callable[[], ssl.SSLContext]] = {
        "": ours.server,
        "expired": lambda: ours.server(begins=-2 * DAY, ends=-DAY),
        "not yet valid": lambda: ours.server(begins=DAY, ends=2 * DAY),
        "self-signed": lambda: ours.server(self_signed=True),
        "wrong name": lambda: ours.server("127.0.0.2"),
        "unknown authority": lambda: Authority(tmp_path / "other", "other").server(),
        "TLS 1.1": lambda: outdated(ours.server()),
    }
    async with receiving(context=contexts[wrong]()) as target, delivering(tls=Tls(ca=str(ours.file))) as work:
        state, said = await sent(work, target.url("in", scheme="https"))
        # It is tried again: certificates are renewed.
        assert state == ("pending" if wrong else "delivered")
        assert BAD_TLS.get(wrong, "") in said
        assert bool(said) == bool(wrong)
        assert len(target.seen["in"]) == (not wrong)


def test_s5_verification_has_no_switch() -> None:
    assert Tls.__struct_fields__ == ("ca", "certificate", "key")
    assert Tls().context().check_hostname


# --- S7 to S9: signatures of events ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_s7_an_independent_library_verifies_1000_deliveries() -> None:
    async with receiving() as target, delivering(encryption=KEYS, clock=SystemClock()) as work:
        made = await work.relay.endpoints.create(target.url("in"), events=["order.*"], order="none", concurrency=50)
        ids = [(await work.relay.publish("order.paid", {"n": n, "text": "é☃" * (n % 9)}))[0] for n in range(1000)]
        await work.ended(*ids)
    library = standardwebhooks.Webhook(made.secret)
    seen = target.seen["in"]
    assert sorted(each["webhook-id"] for each in seen) == sorted(ids)
    for each in seen:
        headers = {name: each[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
        assert library.verify(each.body, headers)["type"] == "order.paid"


async def test_s8_during_a_rotation_both_secrets_sign_and_then_the_new_one_alone() -> None:
    async with receiving() as target, delivering(encryption=KEYS) as work:
        made = await work.relay.endpoints.create(target.url("in"), events=["*"])
        new = await work.relay.endpoints.rotate_secret(made.endpoint.id, overlap="1h")
        for _ in range(2):
            (webhook,) = await work.relay.publish("order.paid", {})
            await work.ended(webhook)
            work.clock.advance("2h")
    during, after = target.seen["in"]
    assert len(during["webhook-signature"].split(" ")) == 2
    assert len(after["webhook-signature"].split(" ")) == 1
    verified = [_verifies(secret, seen) for secret in (made.secret, new) for seen in (during, after)]
    assert verified == [True, False, True, True]


async def test_s8_ed25519_keys_and_imported_secrets_rotate() -> None:
    known = signing.new_secret()
    async with receiving() as target, delivering(encryption=KEYS) as work:
        endpoints = work.relay.endpoints
        made = await endpoints.create(target.url("in"), events=["*"], signing="ed25519")
        assert made.secret.startswith("whpk_")
        second = await endpoints.rotate_secret(made.endpoint.id, overlap="1h")
        assert second.startswith("whpk_")
        assert await endpoints.rotate_secret(made.endpoint.id, secret=known, overlap="0s") == known
        with pytest.raises(ConfigError, match="secret: must begin with whsec_ or whsk_, not whpk_"):
            await endpoints.rotate_secret(made.endpoint.id, secret=second)
        last = [await endpoints.rotate_secret(made.endpoint.id) for _ in range(12)][-1]
        (webhook,) = await work.relay.publish("order.paid", {})
        await work.ended(webhook)
    (seen,) = target.seen["in"]
    signatures = seen["webhook-signature"].split(" ")
    assert len(signatures) == signing.MOST_SIGNATURES
    assert all(each.startswith("v1a,") for each in signatures)
    assert [_verifies(key, seen) for key in (last, made.secret, known)] == [True, False, False]


def _verifies(secret: str, seen: Seen) -> bool:
    now = int(seen["webhook-timestamp"])
    try:
        return bool(signing.verify([secret], seen.headers, seen.body, now_seconds=now))
    except BadSignature:
        return False


async def test_s9_a_retry_has_a_new_time_and_the_same_id() -> None:
    async with receiving({"in": (status(500), status(200))}) as target, delivering(encryption=KEYS) as work:
        made = await work.relay.endpoints.create(target.url("in"), events=["*"])
        (webhook,) = await work.relay.publish("order.paid", {})
        await work.ended(webhook)
        work.clock.advance("10m")
        await work.ended(webhook, times=2)
        now = work.clock.now() / 1000
    first, second = target.seen["in"]
    assert first["webhook-id"] == second["webhook-id"] == webhook
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 600
    assert signing.verify([made.secret], second.headers, second.body, now_seconds=now) == webhook
    with pytest.raises(BadSignature, match="600 s old"):
        signing.verify([made.secret], first.headers, first.body, now_seconds=now)


async def test_s9_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    compare = hmac.compare_digest

    def counted(one: Any, other: Any) -> bool:
        compared.append(one)
        return compare(one, other)

    async with Relay("memory:", log=False) as relay:
        token, text = await relay.tokens.create("home")
        monkeypatch.setattr(hmac, "compare_digest", counted)
        with pytest.raises(HubRefused, match="the token is not known"):
            await relay.tokens.check(f"Bearer {text}x")
        assert (await relay.tokens.check(f"Bearer {text}")).id == token.id
    assert len(compared) == 2


# --- S10: headers ----------------------------------------------------------------------------------------------------

NOT_CUSTOM = [
    ("X-A", "a\r\nX-Evil: 1"),
    ("X-A", "a\nb"),
    ("X-A", "a\0b"),
    ("X-A", "a\x7fb"),
    ("X-A", "é"),
    ("X-A", "x" * 4097),
    ("X-A\r\nX-Evil", "1"),
    ("X A", "1"),
    ("X-A:", "1"),
    ("", "1"),
    ("Xé", "1"),
    ("Host", "elsewhere.example"),
    ("content-length", "0"),
    ("Transfer-Encoding", "chunked"),
    ("Connection", "close"),
    ("Upgrade", "h2c"),
    ("TE", "trailers"),
    ("Trailer", "X-A"),
    ("Proxy-Authorization", "x"),
    ("proxy-anything", "x"),
    ("Webhook-Signature", "v1,x"),
    ("webhook-id", "x"),
    ("X-Redrive-Webhook-Id", "x"),
    ("Idempotency-Key", "x"),
]


@pytest.mark.parametrize(("name", "value"), NOT_CUSTOM)
async def test_s10_such_a_header_of_an_endpoint_is_refused_when_saved(name: str, value: str) -> None:
    async with Relay("memory:", log=False) as relay:
        await relay.endpoints.create("https://target.example/", id="known")
        with pytest.raises(ConfigError, match=r"^headers: ") as caught:
            await relay.endpoints.update("known", headers={name: value})
        assert value not in str(caught.value) or len(value) < 10
        assert (await relay.endpoints.get("known")).headers == ()


@pytest.mark.parametrize(("name", "value"), NOT_CUSTOM)
async def test_s10_such_a_header_is_refused_when_sent_however_it_was_stored(name: str, value: str) -> None:
    async with receiving() as target, delivering() as work:
        await _stored(work.relay, Endpoint(id="bad", url=target.url("in"), headers=((name, value),)))
        webhook = await work.relay.receive(await work.relay.endpoints.get("bad"), Envelope(b"{}"))
        await work.ended(webhook)
        found = await work.relay.webhooks.get(webhook)
        assert target.seen == {}
    assert found.status == "failed"
    assert "header" in (found.error_message or "")


async def _stored(relay: Relay, endpoint: Endpoint) -> None:
    body = codec.encode(endpoint)
    await store_of(relay.app).write_documents([DocumentWrite(ENDPOINT, endpoint.id, body, None)])


async def test_s10_what_came_in_goes_out_without_what_belongs_to_the_connection() -> None:
    came = [
        (b"host", b"hooks.example"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"2"),
        (b"proxy-authorization", b"x"),
        (b"te", b"trailers"),
        (b"expect", b"100-continue"),
        (b"accept-encoding", b"gzip"),
        (b"upgrade", b"h2c"),
        (b"x-redrive-webhook-id", b"forged"),
        (b"x-redrive-attempt", b"99"),
        (b"idempotency-key", b"forged"),
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"user-agent", b"GitHub-Hookshot/1"),
        (b"x-many", b"b"),
        (b"x-many", b"a"),
        (b"x-utf8", "café €".encode()),
        (b"x-latin", b"caf\xe9"),
        (b"x-team", b"forged"),
    ]
    async with receiving() as target, delivering() as work:
        url = f"{target.url('in')}?own=1"
        await work.relay.endpoints.create(url, id="in", headers={"X-Team": "billing"})
        answer = await post(work.relay.asgi(), "/h/in", b"{}", came, query=b"a=1&a=%202&b=%26%3D%25&c=caf\xe9")
        webhook = answer.said["id"]
        await work.ended(webhook)
    (seen,) = target.seen["in"]
    assert seen.path == "in?own=1&a=1&a=%202&b=%26%3D%25&c=caf%E9"
    assert seen.body == b"{}"
    ours = {"host", "accept", "content-length", "accept-encoding"}
    wire = [(name.lower(), value.encode("latin-1")) for name, value in seen.headers if name.lower() not in ours]
    assert sorted(wire) == sorted(
        [
            ("content-type", b"application/x-www-form-urlencoded"),
            ("user-agent", b"GitHub-Hookshot/1"),
            ("x-many", b"b"),
            ("x-many", b"a"),
            ("x-utf8", "café €".encode()),
            ("x-latin", "café".encode()),
            ("x-team", b"billing"),
            ("x-redrive-webhook-id", webhook.encode()),
            ("x-redrive-attempt", b"1"),
            ("idempotency-key", webhook.encode()),
        ]
    )
    assert [value for name, value in wire if name == "x-many"] == [b"b", b"a"]
    assert seen.all("Host") == [f"{HOST}:{target.port}"]
    assert seen.all("Accept-Encoding") == ["identity"]


# --- what never shows ------------------------------------------------------------------------------------------------


async def test_s14_secrets_are_in_no_log_error_audit_or_document(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    async with (
        receiving({"in": (status(500), status(404))}) as target,
        delivering(encryption=KEYS, log=True) as work,
    ):
        relay = work.relay
        made = await relay.endpoints.create(
            target.url("in"), id="in", provider="github", secret=CANARY, events=["*"], order="none"
        )
        await relay.endpoints.update("in", secret=[CANARY, f"{CANARY}-2"])
        new = await relay.endpoints.rotate_secret("in")
        _, token = await relay.tokens.create("home")
        wrong = relay.endpoints.update("in", secret=f" {CANARY}")
        short = relay.endpoints.update("in", provider="standard", secret=CANARY)
        for trying in (wrong, short, relay.tokens.check(f"Bearer {token}x")):
            with pytest.raises((ConfigError, HubRefused)) as caught:
                await trying
            shown.append(repr(caught.value) + str(caught.value))
        unsigned = await post(relay.asgi(), "/h/in", b"{}", [(b"x-hub-signature-256", b"sha256=00")])
        (webhook,) = await relay.publish("order.paid", {})
        await work.ended(webhook, unsigned.said["id"])
        shown += [repr(await relay.endpoints.list()), repr(await relay.tokens.list()), repr(unsigned.said)]
        shown += [repr(await relay.webhooks.get(each)) for each in (webhook, unsigned.said["id"])]
        store = store_of(relay.app)
        for kind in (ENDPOINT, "webhook.token"):
            shown += [repr(each.body) for each in await store.documents(kind)]
        shown += [repr(each) for each in await store.journal("audit", limit=1000)]
    shown += [record.getMessage() for record in caplog.records]
    text = "\n".join(shown)
    assert all(part in text for part in ("webhook_endpoint_create", "order.paid", "answered 500"))
    secrets = (CANARY, made.secret, new, token, token.split("_", 2)[2])
    assert [secret for secret in secrets if secret in text] == []
