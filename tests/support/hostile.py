"""R30: sixty documents that have broken queues, and what redrive makes of each of them.

`taken`: a handler gets it as a value. `kept`: its bytes are kept, and where a handler wants a value there is a letter.
Otherwise the error that `enqueue` raises; nothing is put then. `value` is what a handler gets, where that needs saying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from redrive.errors import PayloadNotSerialisable, PayloadTooLarge

LIMIT = 1024 * 1024
DEEP = 100_000
NOT_GIVEN = object()

Verdict = Literal["taken", "kept"] | type[PayloadNotSerialisable | PayloadTooLarge]


@dataclass(frozen=True)
class Document:
    name: str
    given: Any
    verdict: Verdict
    value: Any = NOT_GIVEN

    @property
    def raw(self) -> bytes | None:
        return bytes(self.given) if isinstance(self.given, bytes | memoryview) else None

    @property
    def expected(self) -> Any:
        return self.given if self.value is NOT_GIVEN else self.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


PEOPLE = "שלום عالم \u202egnidaer\u202c 👩‍👩‍👧‍👦 🏳️‍🌈 ẞ n\u0303 \U0010ffff \u2028\u2029\ufeff"
PROTO = {"__proto__": {"polluted": True}, "constructor": 1, "__class__": 2, "a.b": 3, "a": {"b": 4}, "$where": 5}
MIXED = {
    "": None,
    "self": [1, -1.5e-300, True, {}],
    "\x00": "\x00\x1f\x7f\x85\u2028\ufffe\uffff",
    "digits": 2**64,
    "sql": "'; DROP TABLE item; --",
    "terminal": "\x1b[2J\x1b]0;pwned\x07\r\n\t",
    "html": "</script><script>alert(1)</script>",
    "path": "../../etc/passwd\\..\\",
    "format": "{0.__class__} %s %n ${jndi:ldap://x}",
}

RAW = (
    Document("nothing", b"", "kept"),
    Document("one NUL", b"\x00", "kept"),
    Document("all bytes", bytes(range(256)), "kept"),
    Document("a pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.", "kept"),
    Document("invalid UTF-8", b'"\xc3\x28"', "kept"),
    Document("a surrogate in UTF-8", b'"\xed\xa0\x80"', "kept"),
    Document("an overlong NUL", b'"\xc0\x80"', "kept"),
    Document("beyond Unicode", b'"\xf4\x90\x80\x80"', "kept"),
    Document("a BOM", b'\xef\xbb\xbf{"a":1}', "kept"),
    Document("UTF-16", '{"a":1}'.encode("utf-16"), "kept"),
    Document("a lone surrogate", b'"\\ud800"', "kept"),
    Document("a pair the wrong way round", b'"\\udc00\\ud800"', "kept"),
    Document("a pair", b'"\\ud83d\\ude00"', "taken", "😀"),
    Document("U+0000 escaped", b'{"a":"\\u0000"}', "taken", {"a": "\x00"}),
    Document("U+0000 as it is", b'"\x00"', "kept"),
    Document("1e999", b"1e999", "kept"),
    Document("1e999 inside", b'{"a":[-1e999]}', "kept"),
    Document("NaN as Python writes it", b'{"a":NaN}', "kept"),
    Document("Infinity as Python writes it", b"[-Infinity]", "kept"),
    Document("-0", b"-0", "taken", 0),
    Document("2^53+1", b"9007199254740993", "taken", 2**53 + 1),
    Document("digits that a double loses", b'{"n":12345678901234567}', "taken", {"n": 12345678901234567}),
    Document("10^400", b"1" + b"0" * 400, "taken", 10**400),
    Document("10^5000", b"1" + b"0" * 5_000, "kept"),
    Document("a number with zeros to keep", b"[1.10, 1E2, 0.1e-400]", "taken", [1.1, 100.0, 0.0]),
    Document("an empty array", b"[]", "taken", []),
    Document("an empty object", b"{}", "taken", {}),
    Document("a key twice", b'{"a": 1, "a": 2}', "taken", {"a": 2}),
    Document("blanks and order", b' \t{ "b" : 1 ,\r\n "a":[ ] }\n', "taken", {"b": 1, "a": []}),
    Document("a comma too many", b"[1,]", "kept"),
    Document("two documents", b"{}{}", "kept"),
    Document("half a document", b'{"a":"b', "kept"),
    Document("100,000 arrays", b"[" * DEEP + b"]" * DEEP, "kept"),
    Document("100,000 objects", b'{"a":' * DEEP + b"1" + b"}" * DEEP, "kept"),
    Document("a string of 1 MiB", b'"' + b"x" * (LIMIT - 2) + b'"', "taken", "x" * (LIMIT - 2)),
    Document("one byte above 1 MiB", b"x" * (LIMIT + 1), PayloadTooLarge),
)

VALUES = (
    Document("None", None, "taken", {}),  # the handler is called without arguments
    Document("U+0000", {"a\x00b": "\x00"}, "taken"),
    Document("half a character", "\ud800", PayloadNotSerialisable),
    Document("half a character in a key", {"deep": [{"\udfff": 1}]}, PayloadNotSerialisable),
    Document("NaN", math.nan, PayloadNotSerialisable),
    Document("infinity inside", {"a": [1, {"b": -math.inf}]}, PayloadNotSerialisable),
    Document("-0.0", -0.0, "taken"),
    Document("the ends of floats", [5e-324, 1.7976931348623157e308, 0.1 + 0.2], "taken"),
    Document("2^53+1 and 2^64", [2**53 + 1, 2**64, -(2**63) - 1], "taken"),
    Document("10^400 as a value", {"n": 10**400}, "taken"),
    Document("10^5000 as a value", {"n": 10**5000}, PayloadNotSerialisable),
    Document("[] beside {}", {"list": [], "dict": {}, "both": [[], {}]}, "taken"),
    Document("keys that JSON writes alike", {1: "a", "1": "b"}, PayloadNotSerialisable),
    Document("keys with dots and __proto__", PROTO, "taken"),
    Document("numbers as keys", {1: "a", 2.5: "b"}, "taken", {"1": "a", "2.5": "b"}),
    Document("100,000 lists", nested(DEEP), PayloadNotSerialisable),
    Document("itself", circle(), PayloadNotSerialisable),
    Document("500 lists", nested(500), "taken"),
    Document("all kinds of people", {PEOPLE: PEOPLE}, "taken"),
    Document(
        "bytes inside", {"raw": b"\x00\xff", "more": [bytearray(b"x")]}, "taken", {"raw": "AP8=", "more": ["eA=="]}
    ),
    Document("a view of bytes", memoryview(b"\x00\xffbytes"), "kept"),
    Document("a key of 500,000 characters", {"k" * 500_000: 1}, "taken"),
    Document("20,000 keys", {f"key {n}": [n] for n in range(20_000)}, "taken"),
    Document("everything at once", MIXED, "taken"),
)

DOCUMENTS = RAW + VALUES
