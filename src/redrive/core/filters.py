"""The filter language: the text people type in a search box, on a command line or in code.

    queue:emails error:*Timeout age>1h -cause:c41f (attempts>=3 OR tag:eu,us) payload.order.amount>100 "card declined"

Conditions are AND and bind tighter than OR; `-` negates; `field:a,b` is any of them; `*` is the only wildcard; quotes
protect blanks and signs, also `*`, and a backslash makes the next character literal. What has no field is looked for as
it is, in errors and payloads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import assert_never

from redrive.core import durations, instants
from redrive.core.payloads import read_scalar
from redrive.core.rendering import ROOT, render
from redrive.core.select import (
    DERIVED,
    EVERYTHING,
    FIELDS,
    WORDS,
    And,
    Match,
    Not,
    Op,
    Or,
    Path,
    Selection,
    Text,
    available_fields,
)
from redrive.errors import BadDuration, BadFilter, ConfigError

__all__ = ["DEEPEST", "LONGEST", "parse", "render"]

LONGEST = 4096
DEEPEST = 50

_SIGNS: dict[str, Op] = {":": "=", "=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORD = re.compile(r"(?:[^\s():=<>\"',\\]|\\.)+", re.DOTALL)
_PATH = re.compile(rf"{ROOT}(?P<steps>(?:\.(?:\"(?:[^\"\\]|\\.)*\"|[^\s():=<>\"',.\\]+))*)(?![^\s():=<>,])", re.DOTALL)
_STEP = re.compile(r"\.(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>[^.]+))", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SIGN = re.compile(r"[<>]=?|[:=]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_RESERVED = {
    "and": "conditions are AND already; leave it out",
    "or": "write OR in capitals, between two conditions",
    "not": "write - before a condition to negate it",
}
_NO_ORDER = ("text", "word")
_QUOTE_IT = "to look for a text with signs in it, put it in quotes"


def parse(text: str) -> Selection:
    """The selection a filter text means; the empty text means EVERYTHING. BadFilter points at what cannot be read."""
    words: object = text
    if not isinstance(words, str):
        raise ConfigError(f"{words!r} is not a text", field="filter", hint="such as queue:emails error:*Timeout")
    if len(text) > LONGEST:
        raise BadFilter(f"a filter has at most {LONGEST} characters", text=text[: LONGEST + 1], column=LONGEST + 1)
    return _Parser(text).whole()


def _joined(node: type[And | Or], parts: list[Selection]) -> Selection:
    """One part needs no node, and a node inside one of its own kind adds nothing."""
    if len(parts) == 1:
        return parts[0]
    flat: list[Selection] = []
    for part in parts:
        if isinstance(part, node):
            flat.extend(part.parts)
        else:
            flat.append(part)
    return node(tuple(flat))


class _Parser:
    """Recursive descent over the text itself; `at` is the index of the next character to read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def whole(self) -> Selection:
        self._skip_blanks()
        if self.at == len(self.text):
            return EVERYTHING
        selection = self._alternatives()
        if self.at < len(self.text):
            raise self._error("this parenthesis closes nothing")
        return selection

    def _alternatives(self) -> Selection:
        parts = [self._conjunction()]
        while self._take_or():
            parts.append(self._conjunction())
        return _joined(Or, parts)

    def _conjunction(self) -> Selection:
        parts: list[Selection] = []
        while self.at < len(self.text) and self.text[self.at] != ")" and not self._at_or():
            parts.append(self._unit())
            self._skip_blanks()
        if not parts:
            raise self._error("a condition is missing")
        return _joined(And, parts)

    def _unit(self) -> Selection:
        sign = self.text[self.at]
        if sign not in "-(":
            return self._condition()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._error(f"parentheses and negations go at most {DEEPEST} deep")
        selection = self._negation() if sign == "-" else self._group()
        self.depth -= 1
        return selection

    def _negation(self) -> Selection:
        self.at += 1
        if self.at == len(self.text) or self.text[self.at].isspace() or self.text[self.at] == ")":
            raise self._error("a condition is missing after -")
        return Not(self._unit())

    def _group(self) -> Selection:
        opened = self.at
        self.at += 1
        self._skip_blanks()
        selection = self._alternatives()
        if self.at == len(self.text):
            raise self._error("this parenthesis is never closed", at=opened)
        self.at += 1
        return selection

    def _condition(self) -> Selection:
        start = self.at
        path = _PATH.match(self.text, start)
        name = path or _WORD.match(self.text, start)
        sign = None if name is None else _SIGN.match(self.text, name.end())
        if sign is None:
            found = self._bare_text(start)
        elif path is not None:
            found = self._any_of(path.group(), sign, tuple(_steps(path["steps"])))
        else:
            found = self._any_of(self._field(start, sign), sign)
        if self.at < len(self.text) and not (self.text[self.at].isspace() or self.text[self.at] in "()"):
            raise self._error(f"a blank is missing after {self.text[start : self.at]}", hint=_QUOTE_IT)
        return found

    def _bare_text(self, start: int) -> Selection:
        word = _WORD.match(self.text, start)
        name = "" if word is None else word.group()
        if word is None and self.text[start] not in "\"'":
            raise self._error("a field is missing", at=start, hint=available_fields())
        if name.startswith(f"{ROOT}.") and _PATH.match(self.text, start) is None:
            raise self._unknown(name, start)
        if name in FIELDS or name == ROOT or name.startswith(f"{ROOT}."):
            said = f"{name} needs a value, as in {name}:value"
            raise self._error(said, at=start + len(name), hint="to look for the word, put it in quotes")
        if name.lower() in _RESERVED:
            raise self._error(f"{name} stands alone", at=start, hint=_RESERVED[name.lower()])
        value, wild = self._raw()
        if wild:
            hint = 'a text is found wherever it stands: leave the * out; in quotes, "*" is the character'
            raise self._error("a wildcard needs a field, as in text:*declined", at=start, hint=hint)
        if not value:
            raise self._error("an empty text is in everything", at=start)
        return Text(value)

    def _field(self, start: int, sign: re.Match[str]) -> str:
        name = self.text[start : sign.start()]
        if name not in FIELDS:
            raise self._unknown(name, start)
        if _SIGNS[sign.group()] != "=" and FIELDS[name] in _NO_ORDER:
            raise self._error(f"{name} has no order: use {name}:value", at=sign.start())
        return name

    def _any_of(self, field: str, sign: re.Match[str], path: tuple[str, ...] | None = None) -> Selection:
        op = _SIGNS[sign.group()]
        self.at = sign.end()
        values = [self._value(field, op, path)]
        while self.at < len(self.text) and self.text[self.at] == ",":
            if op != "=":
                raise self._error(f"a list goes with : only, as in {field}:1,2")
            self.at += 1
            values.append(self._value(field, op, path))
        return _joined(Or, values)

    def _value(self, field: str, op: Op, path: tuple[str, ...] | None) -> Selection:
        start = self.at
        value, wild = self._raw()
        if path is not None:
            return self._of_payload(path, op, value, start, wild=wild)
        match FIELDS[field]:
            case "text":
                return Match(field, "glob" if wild else "=", value)
            case "word":
                return self._known_word(field, value, start)
            case "integer":
                if not _INTEGER.fullmatch(value):
                    raise self._error(f"{field} needs a whole number, as in {field}>=3", at=start)
                return Match(field, op, int(value))
            case "duration":
                return Match(field, op, self._duration(field, value, start))
            case "instant":
                return self._instant(field, op, value, start)
            case kind:
                assert_never(kind)

    def _of_payload(self, path: tuple[str, ...], op: Op, value: str, start: int, *, wild: bool) -> Path:
        if wild:
            if op != "=":
                raise self._error("a wildcard has no order: use : before it", at=start)
            return Path(path, "glob", value)
        scalar = value if self.text[start] in "\"'" else read_scalar(value)
        if op != "=" and (scalar is None or isinstance(scalar, bool)):
            raise self._error(f"{value} has no order: use :{value}", at=start)
        return Path(path, op, scalar)

    def _known_word(self, field: str, value: str, start: int) -> Selection:
        word = value.lower()
        derived = DERIVED if field == "state" else {}
        if word in derived:
            return derived[word]
        known = (*WORDS[field], *derived)
        if word not in known:
            hint = _nearest(word, known) or f"one of {', '.join(known)}"
            raise self._error(f"{field} is never {value!r}", at=start, hint=hint)
        return Match(field, "=", word)

    def _duration(self, field: str, value: str, start: int) -> int:
        try:
            return durations.parse(value, field=field)
        except BadDuration as error:
            raise self._error(f"{field} needs a duration, as in {field}>1h", at=start, hint=error.hint) from None

    def _instant(self, field: str, op: Op, value: str, start: int) -> Selection:
        """`:` is anywhere in the day, minute or second that was written; other signs compare with its beginning."""
        try:
            first, last = instants.span(value)
        except ValueError:
            hint = "2026-11-15, 2026-11-15T10:30 or 2026-11-15T10:30:05+02:00; UTC unless it says"
            raise self._error(f"{field} needs a date or time, as in {field}>2026-11-15", at=start, hint=hint) from None
        if op != "=" or first == last:
            return Match(field, op, first)
        return And((Match(field, ">=", first), Match(field, "<=", last)))

    def _raw(self) -> tuple[str, bool]:
        """The value without quotes and backslashes, and whether it has a wildcard."""
        start = self.at
        quote = self.text[start] if start < len(self.text) and self.text[start] in "\"'" else ""
        self.at += len(quote)
        found: list[str] = []
        stars: set[bool] = set()
        while not self._ends_value(quote):
            escaped = self.text[self.at] == "\\" and self.at + 1 < len(self.text)
            self.at += escaped
            char = self.text[self.at]
            if "\ud800" <= char <= "\udfff":
                raise self._error("this is half a character and stands in no item")
            if char == "*":
                stars.add(escaped or bool(quote))
            found.append(char)
            self.at += 1
        if len(stars) > 1:
            raise self._error("a wildcard and a literal * cannot be in one value", at=start)
        self._close(quote, start)
        return "".join(found), False in stars

    def _ends_value(self, quote: str) -> bool:
        if self.at == len(self.text):
            return True
        char = self.text[self.at]
        return char == quote if quote else char.isspace() or char in "()\"',"

    def _close(self, quote: str, start: int) -> None:
        if quote and self.at == len(self.text):
            raise self._error("this quote is never closed", at=start)
        if not quote and self.at == start:
            raise self._error("a value is missing")
        self.at += len(quote)

    def _at_or(self) -> bool:
        after = self.text[self.at + 2 : self.at + 3]
        return self.text.startswith("OR", self.at) and (after.isspace() or after in "()")

    def _take_or(self) -> bool:
        if not self._at_or():
            return False
        self.at += 2
        self._skip_blanks()
        return True

    def _skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _unknown(self, name: str, start: int) -> BadFilter:
        if name.startswith(f"{ROOT}."):
            said = "this is no path into a payload"
            return self._error(said, at=start, hint='as in payload.order.amount>100 or payload."odd key".0:x')
        nearest = _nearest(name.partition(".")[0].lower(), (*FIELDS, ROOT))
        hint = " ".join([part for part in (nearest, available_fields()) if part])
        return self._error(f"there is no field {name!r}", at=start, hint=f"{hint}; {_QUOTE_IT}")

    def _error(self, message: str, *, at: int | None = None, hint: str = "") -> BadFilter:
        return BadFilter(message, text=self.text, column=(self.at if at is None else at) + 1, hint=hint)


def _steps(text: str) -> Iterator[str]:
    """The keys and places of a path that is written well."""
    for step in _STEP.finditer(text):
        yield step["plain"] if step["quoted"] is None else _ESCAPED.sub(r"\1", step["quoted"])


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else ""
