"""S7, S9: signatures after Standard Webhooks, checked by published vectors and an independent library."""

from __future__ import annotations

import builtins
import random
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

import msgspec
import pytest
import standardwebhooks.webhooks

from redrive.errors import BadSignature, ConfigError, MissingExtra, RedriveError
from redrive.net import signing

NOW = 1_614_265_330
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
BODY = b'{"test": 2432232314}'
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SEED = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
SVIX_PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
SVIX_PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
HMAC = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
ED25519 = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
OF_SEED = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="


def headers(**changed: str | None) -> list[tuple[str, str]]:
    """Those of the published vector, with some replaced or (None) left out."""
    given = {"webhook_id": ID, "webhook_timestamp": str(NOW), "webhook_signature": HMAC} | changed
    return [(name.replace("_", "-"), value) for name, value in given.items() if value is not None]


def secret_of(size: int, kind: str = "whsec_") -> str:
    return kind + b64encode(bytes(range(size))).decode()


def verify(given: Sequence[tuple[str, str]], keys: Sequence[str] = (KEY,), body: bytes = BODY, now: float = NOW) -> str:
    return signing.verify(keys, given, body, now_seconds=now)


class Frozen(datetime):
    """The clock of the library."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(NOW, tz)


# --- vectors and the independent library -----------------------------------------------------------------------------


def test_published_vectors() -> None:
    assert signing.sign([KEY], ID, NOW, BODY) == HMAC
    assert signing.sign([SEED], ID, NOW, BODY) == OF_SEED
    assert signing.sign([SVIX_PRIVATE], ID, NOW, BODY) == ED25519
    assert signing.public_key(SVIX_PRIVATE) == SVIX_PUBLIC
    assert verify(headers()) == ID
    assert verify(headers(webhook_signature=ED25519), [SVIX_PUBLIC]) == ID


@pytest.mark.slow
def test_s7_an_independent_library_verifies_1000_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standardwebhooks.webhooks, "datetime", Frozen)
    luck = random.Random(7)
    private, public = signing.new_key_pair()
    for number in range(1000):
        old, new = signing.new_secret(), signing.new_secret()
        body = msgspec.json.encode({"n": number, "text": "".join(luck.choices("a. é€\U0001f600\n", k=number % 60))})
        at = NOW + luck.randint(-299, 298)
        sent = signing.signed_headers([new, old, private], f"msg_{number}", at, body)
        for secret in (old, new):
            library = standardwebhooks.webhooks.Webhook(secret)
            assert library.verify(body, sent) == msgspec.json.decode(body)
        for key in (old, new, public):
            assert signing.verify([key], sent, body, now_seconds=NOW) == f"msg_{number}"

        bit = 1 << luck.randrange(8)
        place = luck.randrange(len(body))
        changed = body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :]
        for spoilt, received in (
            (sent, changed),
            (sent | {"webhook-id": f"msf_{number}"}, body),
            (sent | {"webhook-timestamp": str(at ^ 1)}, body),
        ):
            for key in (old, new, public):
                with pytest.raises(BadSignature, match="signature does not match"):
                    signing.verify([key], spoilt, received, now_seconds=NOW)


def test_what_the_independent_library_signs_is_verified() -> None:
    library = standardwebhooks.webhooks.Webhook(KEY)
    signature = library.sign(ID, datetime.fromtimestamp(NOW, UTC), BODY.decode())
    assert verify(headers(webhook_signature=signature)) == ID


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_new_secrets_are_256_bits_and_differ() -> None:
    secrets = {signing.new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {(secret[:6], len(secret)) for secret in secrets} == {("whsec_", 6 + 44)}
    private, public = signing.new_key_pair()
    sent = signing.signed_headers([private], ID, NOW, BODY)
    assert signing.verify([public], sent, BODY, now_seconds=NOW) == ID
    assert signing.new_key_pair() != (private, public)


@pytest.mark.parametrize("size", [0, 23, 24, 64, 65])
def test_a_secret_has_24_to_64_bytes(size: int) -> None:
    if 24 <= size <= 64:
        signature = signing.sign([secret_of(size)], ID, NOW, BODY)
        assert verify(headers(webhook_signature=signature), [secret_of(size).rstrip("=")]) == ID
        return
    said = rf"^secrets: the whsec_ secret has {size} bytes, not 24 to 64 \(use "
    with pytest.raises(ConfigError, match=said):
        signing.sign([secret_of(size)], ID, NOW, BODY)
    with pytest.raises(ConfigError, match=said):
        verify(headers(), [secret_of(size)])


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ([], "must be a list of at least one secret"),
        (KEY, "must be a list of at least one secret"),
        (None, "must be a list of at least one secret"),
        ([KEY, 7], "must begin with whsec_ or whsk_ "),
        (["c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"], "must begin with whsec_ or whsk_ "),
        ([SVIX_PUBLIC], "must begin with whsec_ or whsk_, not whpk_"),
        (["whsec_c2Vjcm_0*"], "what follows whsec_ is not base64"),
        (["whsec_\u00e9"], "what follows whsec_ is not base64"),
        ([f"{KEY}\n"], "what follows whsec_ is not base64"),
        ([secret_of(33, "whsk_")], "the whsk_ secret has 33 bytes, not 32 or 64"),
        ([secret_of(64, "whsk_")], "the public half of the whsk_ key does not match its seed"),
    ],
)
def test_what_cannot_sign_is_refused_without_showing_it(secrets: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^secrets: {said}") as caught:
        signing.sign(secrets, ID, NOW, BODY)
    assert "c2Vjcm" not in str(caught.value)
    assert "MfKQ9r8G" not in str(caught.value)


def test_a_receiver_gets_no_private_key() -> None:
    with pytest.raises(ConfigError, match="must begin with whsec_ or whpk_, not whsk_"):
        verify(headers(), [SVIX_PRIVATE])
    with pytest.raises(ConfigError, match="the whpk_ secret has 31 bytes, not 32"):
        verify(headers(), [secret_of(31, "whpk_")])


def test_ed25519_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"redrive\[crypto\]"):
        signing.sign([SEED], ID, NOW, BODY)
    assert signing.sign([KEY], ID, NOW, BODY) == HMAC


@pytest.mark.parametrize("webhook_id", ["", "a.b", "a b", "a\n", "\u00e9", "x" * 257])
def test_an_id_that_could_be_misread_is_not_signed(webhook_id: str) -> None:
    with pytest.raises(ConfigError, match=r"^webhook_id: .* \(use 1 to 256 printable ASCII characters"):
        signing.sign([KEY], webhook_id, NOW, BODY)


@pytest.mark.parametrize("timestamp", [NOW + 0.5, -1, True, NOW * 1000, None])
def test_a_timestamp_that_is_not_in_whole_seconds_is_not_signed(timestamp: Any) -> None:
    with pytest.raises(ConfigError, match=r"^timestamp_seconds: .* is not a time \(use int"):
        signing.sign([KEY], ID, timestamp, BODY)


def test_only_bytes_are_signed_and_verified() -> None:
    parsed: Any = BODY.decode()
    with pytest.raises(ConfigError, match=r"^body: must be bytes, got str"):
        signing.sign([KEY], ID, NOW, parsed)
    with pytest.raises(ConfigError, match=r"^body: must be bytes, got str"):
        verify(headers(), body=parsed)


# --- receivers -------------------------------------------------------------------------------------------------------


def test_rotation_signs_with_all_and_any_key_of_the_receiver_will_do() -> None:
    other = secret_of(32)
    sent = signing.sign([other, KEY, SVIX_PRIVATE], ID, NOW, BODY)
    assert sent.split(" ")[1:] == [HMAC, ED25519]
    given = headers(webhook_signature=sent)
    for keys in ([KEY], [other], [SVIX_PUBLIC], [secret_of(24), KEY]):
        assert verify(given, keys) == ID
    with pytest.raises(BadSignature, match="signature does not match"):
        verify(given, [secret_of(24), signing.public_key(SEED)])


def test_headers_may_be_a_mapping_in_any_spelling() -> None:
    sent = {"Webhook-Id": ID, "WEBHOOK-TIMESTAMP": str(NOW), "webhook-Signature": HMAC, "Host": "x"}
    assert signing.verify([KEY], sent, BODY, now_seconds=NOW) == ID


@pytest.mark.parametrize("now", [NOW - 300, NOW + 240, NOW - 240.5, NOW + 300])
def test_s9_a_clock_that_is_off_by_the_tolerance_is_accepted(now: float) -> None:
    assert verify(headers(), now=now) == ID


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (NOW + 300.001, "timestamp is 301 s old (tolerance 300 s)"),
        (NOW + 301, "timestamp is 301 s old (tolerance 300 s)"),
        (NOW + 712, "timestamp is 712 s old (tolerance 300 s)"),
        (NOW - 301, "timestamp is 301 s in the future (tolerance 300 s)"),
    ],
)
def test_s9_a_replay_outside_of_the_tolerance_is_refused(now: float, said: str) -> None:
    with pytest.raises(BadSignature) as caught:
        verify(headers(), now=now)
    assert (caught.value.message, caught.value.part) == (said, "webhook-timestamp")


def test_the_tolerance_can_be_chosen() -> None:
    assert signing.verify([KEY], headers(), BODY, now_seconds=NOW + 10, tolerance=10) == ID
    with pytest.raises(BadSignature, match=r"11 s old \(tolerance 10 s\)"):
        signing.verify([KEY], headers(), BODY, now_seconds=NOW + 11, tolerance=10)


def test_s9_a_retried_delivery_has_a_new_time_and_the_same_id() -> None:
    first, second = (signing.signed_headers([KEY], ID, at, BODY) for at in (NOW, NOW + 3600))
    assert signing.verify([KEY], second, BODY, now_seconds=NOW + 3600) == ID
    assert first["webhook-signature"] != second["webhook-signature"]
    with pytest.raises(BadSignature):
        signing.verify([KEY], first, BODY, now_seconds=NOW + 3600)


DIGEST = HMAC.removeprefix("v1,")
HOSTILE = [
    ({"webhook_id": None}, "webhook-id is missing"),
    ({"webhook_id": ""}, "webhook-id is missing"),
    ({"webhook_timestamp": None}, "webhook-timestamp is missing"),
    ({"webhook_signature": None}, "webhook-signature is missing"),
    ({"Webhook_Signature": HMAC}, "webhook-signature occurs 2 times"),
    ({"webhook_signature": "v1," * 5000}, "webhook-signature is longer than 8192 characters"),
    ({"webhook_signature": "v1,x " * 11}, "webhook-signature has 11 signatures, more than 10"),
    ({"webhook_id": "a.b"}, "webhook-id contains a blank, a dot or another character that an id must not have"),
    ({"webhook_id": "\x00"}, "webhook-id contains a blank, a dot or another character that an id must not have"),
    ({"webhook_id": "\ud800"}, "webhook-id contains a blank, a dot or another character that an id must not have"),
    *(
        ({"webhook_timestamp": text}, "timestamp is not a number of seconds")
        for text in ("now", "-1", "+1", "1.5", "1e9", "nan", "1_614", "0x10", "\u0661\u0662", f"{NOW}\n", "9" * 13)
    ),
    *(
        ({"webhook_signature": text}, "signature does not match")
        for text in (
            *("v1,", ",", "v1", DIGEST, f"v2,{DIGEST}", f"v1a,{DIGEST}", f"V1,{DIGEST}", HMAC[:-1], HMAC.lower()),
            *(
                "v1,\u00e9",
                "v1,\ud800",
                "v1,\x00",
                "v1a,\u00e9",
                "v1a,====",
                "v1a,AA",
                ED25519[:-2],
                ED25519[4:],
                "\U0001f600",
                " ",
            ),
        )
    ),
]


@pytest.mark.parametrize(("changed", "said"), HOSTILE)
def test_hostile_headers_are_refused_with_a_reason(changed: dict[str, str | None], said: str) -> None:
    with pytest.raises(BadSignature) as caught:
        verify(headers(**changed), [KEY, SVIX_PUBLIC])
    assert caught.value.message == said
    assert isinstance(caught.value, RedriveError)


def test_a_part_of_the_body_cannot_pass_for_the_timestamp() -> None:
    body = f"{NOW + 10_000}.stolen".encode()
    signature = signing.sign([KEY], ID, NOW, body)
    moved = headers(webhook_id=f"{ID}.{NOW}", webhook_timestamp=str(NOW + 10_000), webhook_signature=signature)
    with pytest.raises(BadSignature, match="webhook-id"):
        verify(moved, body=b"stolen", now=NOW + 10_000)


def test_s9_a_recorded_request_is_refused_and_a_repeated_delivery_is_not() -> None:
    secret, seen = signing.new_secret(), signing.SeenRequests()

    def received(at: int, now: float) -> str:
        headers = signing.signed_headers([secret], "msg_1", at, b"{}")
        return signing.verify([secret], headers, b"{}", now_seconds=now, seen=seen)

    assert received(1000, 1000) == "msg_1"
    with pytest.raises(BadSignature, match="the same request was received before"):
        received(1000, 1299)
    assert received(1060, 1060) == "msg_1", "the next attempt"
    with pytest.raises(BadSignature, match="301 s old"):
        received(1000, 1301)
    assert received(3000, 3000) == "msg_1"
    assert len(seen._until) == 1, "what is too old anyway is forgotten"  # noqa: SLF001 - its size has no other use
