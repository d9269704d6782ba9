"""S7, S9 for what comes in: requests verified as each provider documents it."""

from __future__ import annotations

import ast
import hashlib
import hmac
import inspect
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from redrive.errors import ConfigError
from redrive.net import signing
from redrive.net import verification as providers
from redrive.net.verification import Verification, check_verification, delivery_id

Headers = list[tuple[str, str]]

NOW = 1_531_420_618
BODY = b'{"id": "evt_1"}'
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK_KEY = "8f742231b10e8888abcd99yyyzzz85a5"
SLACK = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
GITHUB_KEY = "It's a Secret to Everybody"
GITHUB = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
STRIPE_BODY = b'{"id": "evt_1NG8Du2eZvKYlo2CUI79vXWy", "object": "event"}'
STRIPE = "t=1492774577,v1=ba03f5653a87817584583435662d050e8342f8a87b45d81f31f10bb2e4e3ac01"
"""Of the package stripe 16.1.0, for the secret whsec_test_secret."""
STANDARD_KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def digest(secret: str, signed: bytes, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), signed, getattr(hashlib, algorithm)).hexdigest()


def judged(verification: Verification, headers: Headers, body: bytes = BODY, now: float = NOW) -> str:
    return providers.verify(verification, headers, body, now_seconds=now)


def stripe(*secrets: str, at: int | str = NOW, body: bytes = BODY) -> Headers:
    signatures = ",".join(f"v1={digest(secret, f'{at}.'.encode() + body)}" for secret in secrets)
    return [("Stripe-Signature", f"t={at},{signatures},v0=6ffbb59b2300aae63f27")]


# --- each provider ---------------------------------------------------------------------------------------------------


def test_github_documented_vector() -> None:
    github = check_verification("github", [GITHUB_KEY])
    sent = [("X-Hub-Signature-256", GITHUB)]
    assert judged(github, sent, b"Hello, World!") == ""
    assert judged(github, sent, b"Hello, World?") == "signature does not match"
    assert judged(github, [("x-hub-signature-256", GITHUB)], b"Hello, World!") == ""
    assert judged(github, []) == "X-Hub-Signature-256 is missing"
    assert judged(github, [("X-Hub-Signature-256", GITHUB[7:])]) == "X-Hub-Signature-256 does not begin with 'sha256='"
    assert judged(check_verification("github", ["another", GITHUB_KEY]), sent, b"Hello, World!") == ""
    assert judged(check_verification("github", ["another"]), sent, b"Hello, World!") == "signature does not match"


def test_slack_documented_vector() -> None:
    slack = check_verification("slack", [SLACK_KEY])
    sent = [("X-Slack-Signature", SLACK), ("X-Slack-Request-Timestamp", str(NOW))]
    assert judged(slack, sent, SLACK_BODY) == ""
    assert judged(slack, sent, SLACK_BODY + b"&") == "signature does not match"
    assert judged(slack, sent, SLACK_BODY, NOW + 300) == ""
    assert judged(slack, sent, SLACK_BODY, NOW + 412) == "timestamp is 412 s old (tolerance 300 s)"
    assert judged(slack, sent[:1], SLACK_BODY) == "X-Slack-Request-Timestamp is missing"
    moved = [sent[0], ("X-Slack-Request-Timestamp", str(NOW + 60))]
    assert judged(slack, moved, SLACK_BODY, NOW + 60) == "signature does not match"


def test_stripe_fixed_vector() -> None:
    one = check_verification("stripe", ["whsec_test_secret"])
    assert judged(one, [("Stripe-Signature", STRIPE)], STRIPE_BODY, 1492774577) == ""
    assert (
        judged(one, [("Stripe-Signature", STRIPE)], STRIPE_BODY, 1492774878)
        == "timestamp is 301 s old (tolerance 300 s)"
    )
    assert judged(one, [("Stripe-Signature", STRIPE)], STRIPE_BODY + b" ", 1492774577) == "signature does not match"


def test_stripe() -> None:
    one = check_verification("stripe", ["whsec_new", "whsec_old"])
    assert judged(one, stripe("whsec_new")) == ""
    assert judged(one, stripe("whsec_old")) == ""
    assert judged(one, stripe("other", "whsec_old")) == ""
    assert judged(one, stripe("other")) == "signature does not match"
    assert judged(one, stripe("whsec_new"), b'{"id": "evt_2"}') == "signature does not match"
    assert judged(one, [("stripe-signature", f"t={NOW}")]) == "Stripe-Signature is not of the form t=...,v1=..."
    twice = stripe("whsec_new")[0][1]
    assert judged(one, [("Stripe-Signature", f"t=1,{twice}")]) == "Stripe-Signature is not of the form t=...,v1=..."
    only_v0 = [("Stripe-Signature", twice.replace("v1=", "v0="))]
    assert judged(one, only_v0) == "Stripe-Signature is not of the form t=...,v1=..."


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (NOW + 300, ""),
        (NOW - 300, ""),
        (NOW + 300.5, "timestamp is 301 s old (tolerance 300 s)"),
        (NOW - 301, "timestamp is 301 s in the future (tolerance 300 s)"),
    ],
)
def test_s9_stripe_tolerance_is_300_seconds(now: float, reason: str) -> None:
    assert judged(check_verification("stripe", ["s"]), stripe("s"), now=now) == reason


def test_the_tolerance_can_be_chosen() -> None:
    patient = check_verification("stripe", ["s"], tolerance=3600)
    assert judged(patient, stripe("s"), now=NOW + 3600) == ""
    assert judged(patient, stripe("s"), now=NOW + 3601) == "timestamp is 3601 s old (tolerance 3600 s)"


def test_telegram() -> None:
    telegram = check_verification("telegram", ["new_Token-1", "old"])
    name = "X-Telegram-Bot-Api-Secret-Token"
    assert [judged(telegram, [(name, token)]) for token in ("new_Token-1", "old")] == ["", ""]
    for wrong in ("new_token-1", "ol", "oldd"):
        assert judged(telegram, [(name, wrong)]) == "token does not match"
    assert judged(telegram, []) == f"{name} is missing"


def test_standard() -> None:
    private, public = signing.new_key_pair()
    both = check_verification("standard", [STANDARD_KEY, public])
    for key in (STANDARD_KEY, private):
        sent = list(signing.signed_headers([key], "msg_1", NOW, BODY).items())
        assert judged(both, sent) == ""
        assert judged(both, sent, BODY + b" ") == "signature does not match"
        assert judged(both, sent, now=NOW + 301) == "timestamp is 301 s old (tolerance 300 s)"
        assert judged(both, sent[1:]) == "webhook-id is missing"


def test_static() -> None:
    bearer = check_verification("static", ["t0p secret", "next"], header="Authorization", prefix="Bearer ")
    assert judged(bearer, [("authorization", "Bearer t0p secret")]) == ""
    assert judged(bearer, [("authorization", "Bearer next")]) == ""
    assert judged(bearer, [("authorization", "Bearer t0p")]) == "token does not match"
    assert judged(bearer, [("authorization", "t0p secret")]) == "Authorization does not begin with 'Bearer '"


def test_none_takes_anything() -> None:
    assert judged(check_verification("none"), []) == ""


# --- generic hmac ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
def test_hmac_of_the_body(algorithm: str) -> None:
    plain = check_verification("hmac", ["s\u00e9cret"], header="X-Sig", algorithm=algorithm)
    right = digest("s\u00e9cret", BODY, algorithm)
    assert judged(plain, [("X-Sig", right)]) == ""
    assert judged(plain, [("X-Sig", right.upper())]) == ""
    assert judged(plain, [("X-Sig", right)], BODY + b"\n") == "signature does not match"
    packed = check_verification("hmac", ["s\u00e9cret"], header="X-Sig", algorithm=algorithm, encoding="base64")
    text = b64encode(bytes.fromhex(right)).decode()
    assert judged(packed, [("X-Sig", text)]) == ""
    assert judged(packed, [("X-Sig", text.swapcase())]) == "signature does not match"


def test_hmac_with_a_timestamp() -> None:
    options: dict[str, Any] = {"header": "X-Sig", "timestamp_header": "X-Time", "prefix": "sha256="}
    timed = check_verification("hmac", ["s"], **options)
    sent = [("X-Sig", f"sha256={digest('s', f'{NOW}.'.encode() + BODY)}"), ("X-Time", str(NOW))]
    assert judged(timed, sent) == ""
    assert judged(timed, [sent[0], ("X-Time", str(NOW + 1))]) == "signature does not match"
    assert judged(timed, sent, now=NOW + 301) == "timestamp is 301 s old (tolerance 300 s)"
    assert judged(timed, [sent[0], ("X-Time", "yesterday")]) == "timestamp is not a number of seconds"
    assert judged(timed, sent[:1]) == "X-Time is missing"

    around = check_verification("hmac", ["s"], **options, template="<{body}|{timestamp}>", tolerance=10)
    signed = b"<" + BODY + f"|{NOW}>".encode()
    assert judged(around, [("X-Sig", f"sha256={digest('s', signed)}"), sent[1]], now=NOW + 10) == ""
    assert judged(around, sent, now=NOW + 11) == "timestamp is 11 s old (tolerance 10 s)"
    quoted = check_verification("hmac", ["s"], header="X-Sig", template="v1:{body}")
    assert judged(quoted, [("X-Sig", digest("s", b"v1:" + BODY))]) == ""
    assert judged(quoted, [("X-Sig", digest("s", b"v1:{timestamp}"))], b"{timestamp}") == ""


# --- hostile requests ------------------------------------------------------------------------------------------------

ALL = [
    check_verification("stripe", ["s"]),
    check_verification("github", ["s"]),
    check_verification("telegram", ["s"]),
    check_verification("slack", ["s"]),
    check_verification("standard", [STANDARD_KEY, signing.new_key_pair()[1]]),
    check_verification("hmac", ["s"], header="X-Sig", timestamp_header="X-Time", encoding="base64"),
    check_verification("static", ["s"], header="X-Sig"),
]
NAMES = (
    *("Stripe-Signature", "X-Hub-Signature-256", "X-Telegram-Bot-Api-Secret-Token", "X-Slack-Signature"),
    *("X-Slack-Request-Timestamp", "webhook-id", "webhook-timestamp", "webhook-signature", "X-Sig", "X-Time"),
)
JUNK = (
    *("", " ", "\x00", "\r\n", "\u00e9", "\ud800", "\U0001f600", "%s%n{body}", "=" * 400, "A" * 10_000_000),
    *(
        "sha256=\u00e9",
        "v0=\ud800",
        "t=,v1=",
        f"t={NOW},v1=\x00",
        f"t={NOW},v1=\u00e9",
        "t=1=2,v1",
        ",,,,",
        "v1=" * 2000,
    ),
    *("v1,====", "v1a,====", "v1a,\u00e9", "v1a,AAAA", "v1a", "," * 8000, str(NOW), "9" * 5000, "\u0661", "-1", "nan"),
)


@pytest.mark.parametrize("verification", ALL, ids=lambda verification: str(verification.provider))
def test_hostile_headers_get_a_reason(verification: Verification) -> None:
    for junk in JUNK:
        alone = judged(verification, [(name, junk) for name in NAMES])
        timed = judged(verification, [(name, str(NOW) if "Time" in name.title() else junk) for name in NAMES])
        named = judged(verification, [*[(junk, junk)] * 3, ("x" * 10_000, "y")])
        for reason in (alone, timed, named):
            assert reason, (verification, junk)
            assert reason.isascii(), (verification, junk)
            assert len(reason) < 120, (verification, junk)


@pytest.mark.parametrize("verification", ALL, ids=lambda verification: str(verification.provider))
def test_a_repeated_or_huge_header_is_refused(verification: Verification) -> None:
    repeated = [(name, str(NOW)) for name in (*NAMES, *[name.lower() for name in NAMES])]
    assert judged(verification, repeated).endswith(" occurs 2 times")
    huge = [(name, "1" * 9000) for name in NAMES]
    assert judged(verification, huge).endswith(" is longer than 8192 characters")


def test_an_unknown_provider_is_never_taken_for_a_genuine_request() -> None:
    for verify in (judged, lambda verification, headers: judged(verification, headers, b"")):
        with pytest.raises(ConfigError, match="no provider is called 'paypal'"):
            verify(Verification("paypal"), [])
    assert judged(Verification("github"), [("X-Hub-Signature-256", GITHUB)]) == "signature does not match"


def test_s9_signatures_are_compared_in_constant_time() -> None:
    """No == or `in` between what was computed and what came in."""
    for module in (signing, providers):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Compare):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                assert not names & {"expected", "digest", "secret"}, ast.unparse(node)
        assert inspect.getsource(module).count("compare_digest(") >= 1


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        (
            {"provider": "gihub"},
            "provider",
            "no provider is called 'gihub' (did you mean github? there are stripe, git",
        ),
        ({"provider": "paypal"}, "provider", "no provider is called 'paypal' (there are stripe, github, telegram, "),
        ({"provider": None}, "provider", "no provider is called None (there are "),
        ({"provider": "github"}, "secrets", "github needs a secret (give "),
        ({"provider": "github", "secrets": "text"}, "secrets", "must be a list of texts (list both"),
        ({"provider": "github", "secrets": [""]}, "secrets", "secret 1 of 1 cannot be used (use 1 to 1024 characters"),
        ({"provider": "slack", "secrets": ["hidden", "hidden\n"]}, "secrets", "secret 2 of 2 cannot be used (use 1 to"),
        ({"provider": "stripe", "secrets": ["hidden\ud800"]}, "secrets", "secret 1 of 1 cannot be used (use 1 to 10"),
        ({"provider": "stripe", "secrets": [b"hidden"]}, "secrets", "secret 1 of 1 cannot be used (use 1 to 1024 cha"),
        ({"provider": "telegram", "secrets": ["hidden!"]}, "secrets", "secret 1 of 1 cannot be used (use 1 to 256 of"),
        (
            {"provider": "static", "secrets": ["hidd\u00e9n"], "header": "X"},
            "secrets",
            "secret 1 of 1 cannot be used (",
        ),
        ({"provider": "standard", "secrets": ["hidden"]}, "secrets", "must begin with whsec_ or whpk_ (sign with"),
        ({"provider": "standard", "secrets": ["whsec_aGlkZGVu"]}, "secrets", "the whsec_ secret has 6 bytes, not 24 "),
        ({"provider": "none", "secrets": ["hidden"]}, "secrets", "none takes no secrets, got 1 (leave them out"),
        (
            {"provider": "github", "secrets": ["s"], "header": "X"},
            "header",
            "github does not take this option, got 'X' (leave",
        ),
        (
            {"provider": "github", "secrets": ["s"], "tolerance": 9},
            "tolerance",
            "github does not take this option, got 9 (leave",
        ),
        ({"provider": "hmac", "secrets": ["s"]}, "header", "hmac needs a header (name the header"),
        ({"provider": "static", "secrets": ["s"]}, "header", "static needs a header (name the header"),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X Sig"},
            "header",
            "'X Sig' cannot be used (use a header name",
        ),
        ({"provider": "hmac", "secrets": ["s"], "header": "X\n"}, "header", "'X\\n' cannot be used (use a header name"),
        ({"provider": "hmac", "secrets": ["s"], "headr": "X"}, "headr", "no such option (did you mean header?"),
        ({"provider": "hmac", "secrets": ["s"], "zzz": 1}, "zzz", "no such option (hmac takes secrets, header, "),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "algorithm": "md5"},
            "algorithm",
            "'md5' cannot be used",
        ),
        ({"provider": "hmac", "secrets": ["s"], "header": "X", "encoding": 7}, "encoding", "7 cannot be used (use hex"),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "prefix": "\n"},
            "prefix",
            "'\\n' cannot be used (use at",
        ),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "template": "x"},
            "template",
            "'x' cannot be used (it mu",
        ),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "template": "{timestamp}.{body}"},
            "template",
            "'{timestamp}.{body}' cannot be used (it must have {body} once, and {timestamp} only with timestamp_head",
        ),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "timestamp_header": "T", "template": "{body}"},
            "template",
            "'{body}' cannot be used (it must have {body} once and {timestamp} once)",
        ),
        (
            {"provider": "hmac", "secrets": ["s"], "header": "X", "tolerance": 9},
            "tolerance",
            "a tolerance of 9 needs a timestamp_header",
        ),
        (
            {"provider": "stripe", "secrets": ["s"], "tolerance": 0},
            "tolerance",
            "0 is not a valid tolerance (use 1 to 86400",
        ),
        (
            {"provider": "stripe", "secrets": ["s"], "tolerance": True},
            "tolerance",
            "True is not a valid tolerance (use 1 to",
        ),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_verification(**given)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: {said}")
    assert "hidden" not in str(caught.value)
    assert "aGlkZGVu" not in str(caught.value)


def test_a_verification_is_checked_again_as_it_was_stored() -> None:
    for verification in ALL:
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(verification), type=Verification)
        assert check_verification(**msgspec.structs.asdict(stored)) == verification


def test_a_verification_does_not_show_its_secrets() -> None:
    shown = repr(check_verification("hmac", ["hidden", "hidden too"], header="X-Sig"))
    assert shown == "Verification(provider='hmac', header='X-Sig', secrets=<2>)"


# --- ids of deliveries -----------------------------------------------------------------------------------------------

NAMED = check_verification("hmac", ["s"], header="X-Sig", id_header="X-Delivery")


@pytest.mark.parametrize(
    ("verification", "headers", "body", "found"),
    [
        (ALL[0], [], b'{"id": "evt_1", "object": "event"}', "evt_1"),
        (ALL[1], [("x-github-delivery", "72d3162e-cc78-11e3")], b"", "72d3162e-cc78-11e3"),
        (ALL[2], [], b'{"update_id": 10000, "message": {}}', "10000"),
        (ALL[3], [], b'{"event_id": "Ev08MFMKH6"}', "Ev08MFMKH6"),
        (ALL[3], [], SLACK_BODY, ""),
        (ALL[4], [("Webhook-Id", "msg_1")], b"", "msg_1"),
        (NAMED, [("x-delivery", "7")], b"", "7"),
        (check_verification("none", id_header="X-Delivery"), [("X-Delivery", "8")], b"", "8"),
        (ALL[5], [("X-Delivery", "7")], b'{"id": "evt_1"}', ""),
        (NAMED, [], b"", ""),
        (NAMED, [("X-Delivery", "1"), ("X-Delivery", "2")], b"", ""),
        (NAMED, [("X-Delivery", "1\x00")], b"", ""),
        (NAMED, [("X-Delivery", "\ud800")], b"", ""),
        (NAMED, [("X-Delivery", "x" * 257)], b"", ""),
        (Verification("paypal"), [], b'{"id": "1"}', ""),
        *(
            (ALL[2], [], body, "")
            for body in (b"", b"{", b"[]", b"null", b'{"update_id": true}', b'{"update_id": 1.5}')
        ),
        *((ALL[0], [], body, "") for body in (b'{"id": {}}', b'{"id": "\xff"}', b'{"id": "\\u0000"}', b'{"id": null}')),
        (ALL[0], [], b'{"id": "' + b"x" * 257 + b'"}', ""),
        (ALL[0], [], b'{"a": ' + b"[" * 100_000, ""),
        (ALL[2], [], b'{"update_id": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_the_providers_own_id(verification: Verification, headers: Headers, body: bytes, found: str) -> None:
    assert delivery_id(verification, headers, body) == found
