"""Keys of encryption: what cannot be used is refused by its id, and no key is ever shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from base64 import b64encode

import pytest

from redrive import Keyring, Redrive
from redrive.errors import ConfigError, DecryptionFailed, MissingExtra, StoreCorrupt
from redrive.stores.packing import Packed, key_id_of, pack, unpack

KEY = bytes(range(32))
TEXT = b64encode(KEY).decode()
OTHER = bytes(range(1, 33))
BODY = b'{"card": 4111}'


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
