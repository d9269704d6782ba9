"""What comes in at /h/ENDPOINT: stored before a 200, or refused with the published status and nothing stored."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive import Keyring
from redrive.net.verification import PROVIDERS
from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from redrive.webhooks import Relay, Webhook, ingest, new_secret, signed_headers
from tests.support.lab import Lab, memory_lab
from tests.support.logs import ours
from tests.support.stores import EACH, StoreUrl
from tests.webhooks.kit import add, delivering, ended, receiving
from tests.webhooks.kit import post as webhook
from tests.webhooks.serving import Header, calling, head, parts, post, serving

__all__ = ["memory_lab"]
MIB = 1024 * 1024
SECRET = "it-is-a-secret"  # noqa: S105 - not one of anybody's
KEYS = Keyring({"k1": b64encode(bytes(32)).decode()}, current="k1")
TARGET = "https://target.example/in"
BODY = b'{"action": "opened"}'


def relay_on(store: Any = "memory:", **options: Any) -> Relay:
    return Relay(store, **{"clock": FakeClock(), "encryption": KEYS, "log": False, **options})


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with relay_on() as made:
        await made.endpoints.create(TARGET, id="plain")
        await made.endpoints.create(TARGET, id="github", provider="github", secret=SECRET)
        yield made


def signed(body: bytes = BODY, delivery: str = "d-1", *, secret: str = SECRET) -> list[Header]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return [(b"x-hub-signature-256", f"sha256={digest}".encode()), (b"x-github-delivery", delivery.encode())]


async def stored(relay: Relay) -> list[Webhook]:
    """Everything that is there, first received first."""
    return [await relay.webhooks.get(each.id) for each in reversed((await relay.webhooks.list()).webhooks)]


async def test_what_was_received_is_kept_as_it_came(relay: Relay) -> None:
    body = bytes(range(256))
    headers = [
        (b"x-one", b"1"),
        (b"x-many", b"b"),
        (b"X-Many", b"a"),
        (b"x-many", b"b"),
        (b"x-raw", b"\xe9 \x80 \xc3\xa9"),
    ]
    answer = await post(relay.asgi(), "/h/plain", body, headers, query=b"a=1&b=%2F&a=2&c=\xe9+'[]")
    assert (answer.status, answer.said["duplicate"]) == (200, False)
    (webhook,) = await stored(relay)
    assert (webhook.id, webhook.payload) == (answer.said["id"], body)
    assert (webhook.status, webhook.signature_valid) == ("pending", None)
    pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    assert webhook.headers == pairs


@pytest.mark.parametrize(
    "path",
    [
        "/h/none",
        "/h/",
        "/h",
        "/h/plain/",
        "/h/plain/more",
        "/h//plain",
        "/h/../plain",
        "/h/..",
        "/h/plain\0",
        "/h/plain\n",
        "/h/PLAIN",
        "/h/pl\udcffin",
        "/h/\u2028",
        "/h/" + "a" * 5000,
        "/h/*",
        "/h/webhook:plain",
        "/",
        "/metrics",
    ],
)
async def test_h19_an_endpoint_that_is_not_known_is_404(relay: Relay, path: str) -> None:
    answer = await post(relay.asgi(), path)
    assert (answer.status, list(answer.said)) == (404, ["error"])
    assert await stored(relay) == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"])
async def test_h19_another_method_is_405(relay: Relay, method: str) -> None:
    answer = await post(relay.asgi(), "/h/plain", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert await stored(relay) == []


# --- signatures and repeats ------------------------------------------------------------------------------------------


async def test_h18_a_bad_signature_is_flagged_and_stored(relay: Relay) -> None:
    for headers in (signed(), signed(secret="another"), []):  # noqa: S106 - not one of anybody's
        assert (await post(relay.asgi(), "/h/github", BODY, headers)).status == 200
    assert [each.signature_valid for each in await stored(relay)] == [True, False, False]
    assert {each.status for each in await stored(relay)} == {"pending"}


async def test_a_bad_signature_is_refused_where_the_endpoint_says_so(relay: Relay) -> None:
    await relay.endpoints.update("github", bad_signature="refuse")
    answer = await post(relay.asgi(), "/h/github", BODY, signed(secret="another"))  # noqa: S106 - as above
    assert (answer.status, answer.said["error"]) == (401, "the signature was refused: signature does not match")
    assert await stored(relay) == []
    assert (await post(relay.asgi(), "/h/github", BODY, signed())).status == 200


@pytest.mark.parametrize("kind", EACH)
async def test_a_repeat_within_a_day_adds_nothing(kind: str, store_url: StoreUrl) -> None:
    clock = FakeClock()
    async with relay_on(store_url(kind), clock=clock) as relay:
        await relay.endpoints.create(TARGET, id="github", provider="github", secret=SECRET)
        app = relay.asgi()
        first = (await post(app, "/h/github", BODY, signed())).said
        again = (await post(app, "/h/github", BODY, signed())).said
        other = (await post(app, "/h/github", BODY, signed(delivery="d-2"))).said
        assert again == {"id": first["id"], "duplicate": True}
        assert other["duplicate"] is False
        assert len(await stored(relay)) == 2
        clock.advance("25h")
        # While the first waits it is still the one.
        assert (await post(app, "/h/github", BODY, signed())).said["duplicate"] is True


async def test_an_id_is_known_for_a_day_after_its_delivery(memory_lab: Lab) -> None:
    headers = [("X-GitHub-Delivery", "d-1")]
    async with receiving(memory_lab) as receiver, delivering(memory_lab, receiver) as relay:
        await add(relay, receiver, verification={"id_header": "X-GitHub-Delivery"})

        async def repeat() -> bool:
            told = await webhook(relay, "shop", BODY, headers)
            await ended(memory_lab, relay, told.body["id"])
            return bool(told.body["duplicate"])

        assert await repeat() is False
        memory_lab.clock.advance("23h")
        assert await repeat() is True
        memory_lab.clock.advance("2h")
        assert await repeat() is False
        assert receiver.bodies == [BODY.decode()] * 2


def _digest(text: bytes, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), text, algorithm).hexdigest()


WHSEC = f"whsec_{b64encode(bytes(range(24))).decode()}"
SCHEMES: dict[str, tuple[dict[str, Any], Callable[[str, int], dict[str, str]], bool]] = {
    "github": ({"secret": SECRET}, lambda secret, _: {"X-Hub-Signature-256": f"sha256={_digest(BODY, secret)}"}, False),
    "stripe": (
        {"secret": SECRET},
        lambda secret, at: {"Stripe-Signature": f"t={at},v1={_digest(b'%d.%b' % (at, BODY), secret)}"},
        True,
    ),
    "slack": (
        {"secret": SECRET},
        lambda secret, at: {
            "X-Slack-Signature": f"v0={_digest(b'v0:%d:%b' % (at, BODY), secret)}",
            "X-Slack-Request-Timestamp": str(at),
        },
        True,
    ),
    "telegram": ({"secret": SECRET}, lambda secret, _: {"X-Telegram-Bot-Api-Secret-Token": secret}, False),
    "standard": (
        {"secret": WHSEC},
        lambda secret, at: dict(signed_headers([WHSEC if secret == SECRET else new_secret()], "m-1", at, BODY)),
        True,
    ),
    "hmac": (
        {"secret": SECRET, "verification": {"header": "X-Sign", "timestamp_header": "X-At", "algorithm": "sha512"}},
        lambda secret, at: {
            "X-Sign": _digest(b"%d.%b" % (at, BODY), secret, "sha512"),
            "X-At": str(at),
        },
        True,
    ),
    "static": (
        {"secret": SECRET, "verification": {"header": "Authorization", "prefix": "Bearer "}},
        lambda secret, _: {"Authorization": f"Bearer {secret}"},
        False,
    ),
}
"""By provider: options of the endpoint, headers by a secret and a time, and whether an old time is refused."""


async def test_h18_each_provider_is_verified() -> None:
    clock = FakeClock()
    async with relay_on(clock=clock) as relay:
        app, now = relay.asgi(), clock.now() // 1000
        assert {*SCHEMES, "none"} == {*PROVIDERS}
        for provider, (options, headers, dated) in SCHEMES.items():
            await relay.endpoints.create(TARGET, id=provider, provider=provider, **options)
            for secret, at, valid in ((SECRET, now, True), ("another", now, False), (SECRET, now - 301, not dated)):
                pairs = [(name.lower().encode(), value.encode()) for name, value in headers(secret, at).items()]
                told = await post(app, f"/h/{provider}", BODY, pairs)
                webhook = await relay.webhooks.get(told.said["id"])
                assert (told.status, webhook.signature_valid) == (200, valid), (provider, secret, at)


async def test_who_cannot_sign_cannot_keep_the_real_one_out(relay: Relay) -> None:
    forged = await post(relay.asgi(), "/h/github", b"{}", signed(secret="another"))  # noqa: S106 - as above
    real = await post(relay.asgi(), "/h/github", BODY, signed())
    forged_again = await post(relay.asgi(), "/h/github", b"{}", signed(secret="another"))  # noqa: S106 - as above
    assert [each.said["duplicate"] for each in (forged, real, forged_again)] == [False, False, False]
    assert [each.signature_valid for each in await stored(relay)] == [False, True, False]


async def test_the_ids_of_two_endpoints_are_apart(relay: Relay) -> None:
    await relay.endpoints.create(TARGET, id="other", provider="github", secret=SECRET)
    for path in ("/h/github", "/h/other"):
        assert (await post(relay.asgi(), path, BODY, signed())).said["duplicate"] is False


@pytest.mark.parametrize("delivery", ["", "x" * 257, "d\x80", "\xe9"])
async def test_an_id_that_cannot_be_used_does_not_matter(relay: Relay, delivery: str) -> None:
    headers = [signed()[0], (b"x-github-delivery", delivery.encode("latin-1"))]
    for _ in range(2):
        assert (await post(relay.asgi(), "/h/github", BODY, headers)).status == 200
    assert len(await stored(relay)) == (1 if delivery == "\xe9" else 2)


async def test_secrets_that_cannot_be_read_lose_nothing() -> None:
    store = MemoryStore(FakeClock())
    async with relay_on(store) as relay:
        await relay.endpoints.create(TARGET, id="flag", provider="github", secret=SECRET)
        await relay.endpoints.create(TARGET, id="refuse", provider="github", secret=SECRET, bad_signature="refuse")
        other = Keyring({"k2": b64encode(b"2" * 32).decode()}, current="k2")
        blind = relay_on(store, encryption=other)
        async with blind:
            flagged = await post(blind.asgi(), "/h/flag", BODY, signed())
            later = await post(blind.asgi(), "/h/refuse", BODY, signed())
            assert (flagged.status, later.status, later.headers["retry-after"]) == (200, 503, "5")
            assert [each.signature_valid for each in await stored(blind)] == [False]


async def test_h15_muted_and_disabled_endpoints_store_and_answer_200(relay: Relay) -> None:
    for change in (relay.endpoints.mute, relay.endpoints.disable):
        await change("plain")
        assert (await post(relay.asgi(), "/h/plain", BODY)).status == 200
    assert [each.status for each in await stored(relay)] == ["pending", "pending"]


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10 * MIB + 1, 100 * MIB, 10**30, "9" * 5000])
async def test_h19_a_body_that_is_too_long_by_its_length_is_not_read(relay: Relay, length: object) -> None:
    async def never() -> dict[str, Any]:
        raise AssertionError("it was read")

    answer = await post(relay.asgi(), "/h/plain", never, [(b"content-length", str(length).encode())])
    assert (answer.status, answer.said["error"]) == (413, "the body is larger than 10,485,760 bytes")
    assert await stored(relay) == []


@pytest.mark.parametrize("length", [b"2", b"-1", b"\xb2", b"1e9", b""])
async def test_h19_a_body_is_counted_whatever_its_length_says(length: bytes) -> None:
    async with relay_on(max_body="1KiB") as relay:
        await relay.endpoints.create(TARGET, id="plain")
        for size, status in ((1024, 200), (1025, 413)):
            body = parts(b"x" * (size - 1), b"x")
            assert (await post(relay.asgi(), "/h/plain", body, [(b"content-length", length)])).status == status
        assert len(await stored(relay)) == 1


@pytest.mark.slow
async def test_100_mb_over_a_socket_are_refused_in_little_memory(relay: Relay) -> None:
    chunk = b"x" * 65_536
    async with serving(relay) as port:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            async with calling(port) as caller:
                await caller.send(head("/h/plain", f"Content-Length: {100 * MIB}") + chunk)
                assert (await caller.answer()).status == 413
            async with calling(port) as caller:
                await caller.send(head("/h/plain", "Transfer-Encoding: chunked"))
                for _ in range(100 * MIB // len(chunk)):
                    await caller.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                assert (await caller.answer()).status == 413
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - before < 3 * 10 * MIB
    assert await stored(relay) == []


@pytest.mark.slow
async def test_a_body_that_does_not_come_is_408(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "READ_WITHIN", 0.2)
    async with serving(relay) as port, calling(port) as caller:
        await caller.send(head("/h/plain", "Content-Length: 10") + b"half")
        answer = await caller.answer()
        assert (answer.status, answer.said["error"]) == (408, "the body did not come within 0.2 s")
        assert await caller.closed()
    assert await stored(relay) == []


@pytest.mark.slow
async def test_a_sender_that_goes_away_leaves_nothing(relay: Relay) -> None:
    async with serving(relay) as port:
        for line, half in (("Content-Length: 10", b"half"), ("Transfer-Encoding: chunked", b"4\r\nhalf\r\n")):
            async with calling(port) as caller:
                await caller.send(head("/h/plain", line) + half)
        async with calling(port) as caller:
            await caller.send(head("/h/plain", "Content-Length: 2") + b"{}")
            assert (await caller.answer()).status == 200
    assert [each.payload for each in await stored(relay)] == [b"{}"]


async def test_a_body_that_is_cut_is_not_stored(relay: Relay) -> None:
    answer = await post(relay.asgi(), "/h/plain", parts(b"half", then={"type": "http.disconnect"}))
    assert (answer.status, answer.said["error"]) == (400, "the body is not whole")
    assert await stored(relay) == []


async def test_what_is_received_at_once_is_bounded(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "IN_MEMORY", 1000)
    app = relay.asgi()
    go_on = asyncio.Event()
    reading = asyncio.Event()

    async def slow() -> dict[str, Any]:
        if reading.is_set():
            await go_on.wait()
            return {"type": "http.request", "body": b"", "more_body": False}
        reading.set()
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    first = asyncio.create_task(post(app, "/h/plain", slow))
    await reading.wait()
    refused = await post(app, "/h/plain", b"x" * 600)
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert (await post(app, "/h/plain", b"x" * 300)).status == 200
    go_on.set()
    assert (await first).status == 200
    assert (await post(app, "/h/plain", b"x" * 1000)).status == 200
    assert [len(each.payload) for each in await stored(relay)] == [300, 600, 1000]


# --- the store -------------------------------------------------------------------------------------------------------


async def faulty_relay() -> tuple[Relay, FaultyStore, FakeClock]:
    clock = FakeClock(autoadvance=True)
    store = FaultyStore(MemoryStore(clock))
    relay = await relay_on(store, clock=clock).open()
    await relay.endpoints.create(TARGET, id="plain")
    await relay.endpoints.create(TARGET, id="github", provider="github", secret=SECRET)
    await relay.endpoints.cached("plain")
    return relay, store, clock


async def test_what_waits_for_the_store_counts_as_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "IN_MEMORY", 1000)
    relay, store, _ = await faulty_relay()
    app = relay.asgi()
    hold = store.hold("put")
    waiting = asyncio.create_task(post(app, "/h/plain", b"x" * 600))
    await hold.reached.wait()
    assert (await post(app, "/h/plain", b"x" * 600)).status == 503
    hold.release()
    assert (await waiting).status == 200
    assert (await post(app, "/h/plain", b"x" * 600)).status == 200
    await relay.close()


@pytest.mark.parametrize("verb", ["document", "put"])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
async def test_h31_a_store_that_fails_is_503_and_never_200(
    verb: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    relay, store, clock = await faulty_relay()
    app = relay.asgi()
    clock.advance("5s")  # endpoints are read again
    store.fail(verb, fault)
    with caplog.at_level(logging.INFO):
        answer = await post(app, "/h/github", BODY, signed())
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.said == {"error": "the store does not answer"}
    assert any("a webhook was not stored" in record.getMessage() for record in ours(caplog))
    store.heal()
    again = await post(app, "/h/github", BODY, signed())
    was_stored = (verb, fault) == ("put", Fault.UNKNOWN)
    assert (again.status, again.said["duplicate"]) == (200, was_stored)
    assert [each.payload for each in await stored(relay)] == [BODY]
    await relay.close()


async def test_a_put_whose_outcome_is_unknown_once_is_repeated_and_adds_one() -> None:
    relay, store, _ = await faulty_relay()
    store.next("put", Fault.UNKNOWN)
    answer = await post(relay.asgi(), "/h/github", BODY, signed())
    assert (answer.status, answer.said["duplicate"]) == (200, False)
    assert len(await stored(relay)) == 1
    await relay.close()


async def test_a_full_queue_is_503() -> None:
    async with relay_on(capacity=1) as relay:
        await relay.endpoints.create(TARGET, id="plain")
        assert (await post(relay.asgi(), "/h/plain")).status == 200
        refused = await post(relay.asgi(), "/h/plain")
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert refused.said == {"error": "the queue is full"}


async def test_a_relay_that_is_closed_is_503() -> None:
    relay = relay_on()
    async with relay:
        await relay.endpoints.create(TARGET, id="plain")
        app = relay.asgi()
        await post(app, "/h/plain")
    assert (await post(app, "/h/plain")).status == 503


async def test_a_relay_that_is_not_open_says_how_to_open_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert (await post(relay_on().asgi(), "/h/plain")).status == 503
    assert "`async with relay:`" in ours(caplog)[-1].getMessage()


async def test_a_store_that_is_gone_is_503_and_says_nothing_of_itself(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    store = store_from_url(f"sqlite:///{tmp_path}/hooks.db", clock=clock)
    async with relay_on(store, clock=clock) as relay:
        await relay.endpoints.create(TARGET, id="plain")
        await store.close()
        clock.advance("5s")
        answer = await post(relay.asgi(), "/h/plain")
        assert (answer.status, answer.said) == (503, {"error": "the store does not answer"})
        assert str(tmp_path) not in str(answer)


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\nb", b"a\0b", b"\x7f", b"\x01"])
async def test_s10_a_header_with_a_control_character_is_400(relay: Relay, value: bytes) -> None:
    answer = await post(relay.asgi(), "/h/plain", BODY, [(b"x-name", value)])
    assert (answer.status, answer.said["error"]) == (400, "the header x-name has a control character")
    assert await stored(relay) == []


@pytest.mark.slow
async def test_s12_many_slow_senders_leave_room_for_others(relay: Relay) -> None:
    """Bounded: 200 connections on the loopback that say half a request."""
    async with serving(relay) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        try:
            for _, writer in slow:
                writer.write(head("/h/plain", "Content-Length: 10") + b"half")
            async with calling(port) as caller:
                for number in range(20):
                    await caller.send(head("/h/plain", "Content-Length: 2") + b"{}")
                    assert (await caller.answer()).status == 200, number
        finally:
            for _, writer in slow:
                writer.transport.abort()
    assert len(await stored(relay)) == 20
