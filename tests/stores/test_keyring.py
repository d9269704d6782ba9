"""Keys of encryption: what cannot be used is refused by its id, and no key is ever shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from base64 import b64encode

import pytest

from redrive import Keyring, Redrive
from redrive.errors import ConfigError, DecryptionFailed, MissingExtra, StoreCorrupt
from redrive.stores.keyring import Purpose
from redrive.stores.packing import Packed, key_id_of, pack, unpack

KEY = bytes(range(32))
TEXT = b64encode(KEY).decode()
OTHER = bytes(range(1, 33))
BODY = b'{"card": 4111}'
NONCE = bytes(range(100, 112))
PACKED = Packed(
    bytes.fromhex(
        "00000000000000c8c2a908d98f5df987ade41b5fce213067efbcc21ef2240212a41e54b5e7c28ae578014b4c1c1e0000c27f4bc9"
    ),
    1,
)
"""200 times the letter a."""
HEADER = "00026b31" + NONCE.hex()
SEALED: list[tuple[bytes, str, Purpose, str]] = [
    (BODY, "item-ä", "payload", f"{HEADER}3339bd070b8d74a41e566ed9eb18e644a2370778ed94043c48b4d633e6ee"),
    (
        PACKED,
        "item-ä",
        "payload",
        (
            f"01{HEADER[2:]}481bde6679e95656fccb57315538937aef261d55454dc315486d6e560987a75a"
            "30f71475abd011e185f23373e15ccacfd924d32ebc9a9768748ce46608709975de77d0b9"
        ),
    ),
    (b"null", "item-ä", "result", f"{HEADER}266eb20a0cefff917d51e408eb3829278e08c4f9"),
    (b"{}", "nightly", "schedule", f"{HEADER}3366f1731577dfa3bfe1e4aedc7122590dba"),
    (b"s3cret", "endpoint-1", "secret", f"{HEADER}3b28bd141c9dfc618db81f54d880ed40d04d92d50f9b"),
    (b"", "k1", "check", f"{HEADER}b3bfd45565156349d6bcecba01527145"),
]
"""With KEY under the id k1 and NONCE, as they are in stores: body, name and purpose that are authenticated with it."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no keys"),
        (TEXT, "a key has no id"),
        (f"k1:{TEXT[:-4]}", "key 'k1' has"),
        ("k1:YWJj", "key 'k1' has 3 bytes, not 32"),
        ("k1:???", "key 'k1' is not base64"),
        (f"k1:{TEXT},k1:{TEXT}", "key 'k1' is there twice"),
        (f"k 1:{TEXT}", "the id of a key is invalid"),
        (f":{TEXT}", "the id of a key is invalid"),
    ],
)
def test_keys_that_cannot_be_used_are_named_and_never_shown(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="encryption_keys: ") as caught:
        Keyring.parse(text)
    assert said in str(caught.value)
    assert TEXT[:8] not in str(caught.value)


def test_keys_given_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="the current key 'k3' is not among 'k1', 'k2'"):
        Keyring({"k1": KEY, "k2": TEXT}, current="k3")
    with pytest.raises(ConfigError, match="key 'k1' has 16 bytes, not 32"):
        Keyring({"k1": KEY[:16]}, current="k1")
    with pytest.raises(ConfigError, match="key 'k1' is a int"):
        Keyring({"k1": 7}, current="k1")  # type: ignore[dict-item]  # what callers may give
    with pytest.raises(ConfigError, match="encryption: a str is not a Keyring") as caught:
        Redrive("memory:", encryption=TEXT)  # type: ignore[arg-type]  # as above
    assert TEXT not in str(caught.value)


def test_a_keyring_shows_ids_and_no_keys() -> None:
    ring = Keyring({"k1": KEY, "k2": TEXT}, current="k2")
    assert ring.ids == ("k2", "k1")
    assert repr(ring) == "Keyring(k2, k1; current='k2')"
    with pytest.raises(TypeError):
        pickle.dumps(ring)


def test_what_was_sealed_opens_for_its_item_and_purpose_only() -> None:
    ring = Keyring({"k1": KEY}, current="k1")
    sealed = ring.seal(BODY, "a", "payload")
    assert ring.open(sealed, "a", "payload") == BODY
    assert key_id_of(sealed) == "k1"
    assert sealed.find(BODY) == -1
    for item_id, purpose in (("b", "payload"), ("a", "result")):
        with pytest.raises(DecryptionFailed, match="does not decrypt with key 'k1'"):
            ring.open(sealed, item_id, purpose)  # type: ignore[arg-type]  # one of the two
    with pytest.raises(DecryptionFailed, match="does not decrypt with key 'k1'"):
        Keyring({"k1": OTHER}, current="k1").open(sealed, "a", "payload")
    with pytest.raises(DecryptionFailed, match="key 'k1', which this process does not have"):
        Keyring({"k2": KEY}, current="k2").open(sealed, "a", "payload")


@pytest.mark.parametrize(("body", "name", "purpose", "sealed"), SEALED)
def test_what_was_sealed_before_opens(
    body: bytes, name: str, purpose: Purpose, sealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", lambda size: NONCE[:size])
    ring = Keyring({"k1": KEY}, current="k1")
    assert ring.seal(body, name, purpose).hex() == sealed
    opened = ring.open(Packed(bytes.fromhex(sealed), 2), name, purpose)
    assert unpack(opened) == (b"a" * 200 if body is PACKED else body)


def test_every_changed_byte_is_noticed() -> None:
    ring = Keyring({"k1": KEY}, current="k1")
    packed = pack(b"a" * 100_000)
    for body in (BODY, packed):
        sealed = ring.seal(body, "a", "payload")
        assert unpack(ring.open(sealed, "a", "payload")) == unpack(body)
        for at in range(len(sealed)):
            bent = Packed(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], 2)
            with pytest.raises((DecryptionFailed, StoreCorrupt)):
                ring.open(bent, "a", "payload")
        for cut in (b"", sealed[:1], sealed[:4], sealed[:15], sealed[:-1]):
            with pytest.raises((DecryptionFailed, StoreCorrupt)):
                ring.open(Packed(cut, 2), "a", "payload")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r"pip install 'redrive\[crypto\]'"):
        Keyring({"k1": KEY}, current="k1")


@pytest.mark.slow
def test_nothing_imports_the_package_before_there_are_keys() -> None:
    code = "import sys, redrive; redrive.Redrive('memory:'); redrive.Keyring; print('cryptography' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert told.stdout == "False\n"
