"""The filter language: the text people type in a search box, on a command line or in code.

    queue:emails error:*Timeout age>1h -cause:c41f (attempts>=3 OR category:auth,config)

Words are AND and bind tighter than OR; `-` negates; `field:a,b` is any of them; `*` is the only wildcard; quotes
protect blanks and signs, and a backslash makes the next character literal.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import assert_never

from redrive.core import durations
from redrive.core.select import EVERYTHING, FIELDS, WORDS, And, Ids, Match, Not, Op, Or, Selection, available_fields
from redrive.errors import BadDuration, BadFilter, ConfigError

LONGEST = 4096
DEEPEST = 50

_SIGNS = {":": "=", "=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORD = re.compile(r"[^\s():=<>\"',]+")
_SIGN = re.compile(r"[<>]=?|[:=]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NOTHING = "(state:ready state:done)"


def parse(text: str) -> Selection:
    """The selection a filter text means; the empty text means EVERYTHING. BadFilter points at what cannot be read."""
    words: object = text
    if not isinstance(words, str):
        raise ConfigError(f"{words!r} is not a text", field="filter", hint="such as queue:emails error:*Timeout")
    if len(text) > LONGEST:
        raise BadFilter(f"a filter has at most {LONGEST} characters", text=text[: LONGEST + 1], column=LONGEST + 1)
    return _Parser(text).whole()


def render(selection: Selection) -> str:
    """A text that `parse` reads as a selection of the same items."""
    if isinstance(selection, And):
        return " ".join(_render(part) for part in selection.parts)
    text = _render(selection)
    # At the top an alternative stands without its parentheses.
    return text[1:-1] if isinstance(selection, Or) and text[0] == "(" and text != _NOTHING else text


def _render(selection: Selection) -> str:
    match selection:
        case Match(field, op, value):
            return f"{field}{':' if op in ('=', 'glob') else op}{_render_value(field, op, value)}"
        case Ids(ids):
            return "id:" + ",".join(_render_value("id", "=", one) for one in ids) if ids else _NOTHING
        case Not(part):
            return f"-{_render(part)}"
        case And(parts):
            return f"({' '.join(_render(part) for part in parts)})" if parts else f"-{_NOTHING}"
        case Or(parts):
            return _render_any_of(parts) or (f"({' OR '.join(_render(part) for part in parts)})" if parts else _NOTHING)
        case _:
            assert_never(selection)


def _render_any_of(parts: tuple[Selection, ...]) -> str:
    """`field:a,b` where all the parts are about one field, else nothing."""
    same = [part for part in parts if isinstance(part, Match) and part.op in ("=", "glob")]
    if len(same) < len(parts) or len({part.field for part in same}) != 1:
        return ""
    return f"{same[0].field}:" + ",".join(_render_value(part.field, part.op, part.value) for part in same)


def _render_value(field: str, op: Op, value: str | int) -> str:
    if isinstance(value, int):
        return durations.format(value) if FIELDS[field] == "duration" else str(value)
    escaped = value.replace("\\", "\\\\")
    if op != "glob":
        escaped = escaped.replace("*", "\\*")
    if escaped and _WORD.fullmatch(escaped):
        return escaped
    return '"' + escaped.replace('"', '\\"') + '"'


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
        field, op = self._field()
        values = [self._value(field, op)]
        while self.at < len(self.text) and self.text[self.at] == ",":
            if op != "=":
                raise self._error(f"a list goes with : only, as in {field}:1,2")
            self.at += 1
            values.append(self._value(field, op))
        if self.at < len(self.text) and not (self.text[self.at].isspace() or self.text[self.at] in "()"):
            raise self._error(f"a blank is missing after {self.text[start : self.at]}")
        return _joined(Or, list(values))

    def _field(self) -> tuple[str, Op]:
        start = self.at
        word = _WORD.match(self.text, start)
        sign = _SIGN.match(self.text, start if word is None else word.end())
        if word is None or sign is None:
            raise self._bare(start)
        name = word.group()
        if name not in FIELDS:
            raise self._unknown(name, start)
        self.at = sign.end()
        op = _SIGNS[sign.group()]
        if op != "=" and FIELDS[name] in ("text", "word"):
            raise self._error(f"{name} has no order: use {name}:value", at=sign.start())
        return name, op  # type: ignore[return-value]  # the values of _SIGNS are members of Op

    def _value(self, field: str, op: Op) -> Match:
        start = self.at
        value, wild = self._raw()
        match FIELDS[field]:
            case "text":
                return Match(field, "glob" if wild else "=", value)
            case "word":
                return Match(field, "=", self._known_word(field, value, start))
            case "integer":
                if not _INTEGER.fullmatch(value):
                    raise self._error(f"{field} needs a whole number, as in {field}>=3", at=start)
                return Match(field, op, int(value))
            case "duration":
                return Match(field, op, self._duration(field, value, start))
            case kind:
                assert_never(kind)

    def _known_word(self, field: str, value: str, start: int) -> str:
        word = value.lower()
        if word not in WORDS[field]:
            hint = _nearest(word, WORDS[field]) or f"one of {', '.join(WORDS[field])}"
            raise self._error(f"{field} is never {value!r}", at=start, hint=hint)
        return word

    def _duration(self, field: str, value: str, start: int) -> int:
        try:
            return durations.parse(value, field=field)
        except BadDuration as error:
            raise self._error(f"{field} needs a duration, as in {field}>1h", at=start, hint=error.hint) from None

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
                stars.add(escaped)
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

    def _bare(self, start: int) -> BadFilter:
        word = _WORD.match(self.text, start)
        if word is None and self.text[start] not in "\"'":
            return self._error("a field is missing", at=start, hint=available_fields())
        name = "" if word is None else word.group()
        if name in FIELDS:
            return self._error(f"{name} needs a value, as in {name}:value", at=start + len(name))
        reserved = {
            "and": "words are AND already; leave it out",
            "or": "write OR in capitals, between two conditions",
            "not": "write - before a condition to negate it",
        }
        hint = reserved.get(name.lower(), f"write field:value; {available_fields()}")
        return self._error("bare text is not searched", at=start, hint=hint)

    def _unknown(self, name: str, start: int) -> BadFilter:
        if "." in name or name in ("payload", "headers"):
            return self._error("payloads are not searched", at=start, hint=available_fields())
        nearest = _nearest(name.lower(), tuple(FIELDS))
        hint = f"{nearest} {available_fields()}" if nearest else available_fields()
        return self._error(f"there is no field {name!r}", at=start, hint=hint)

    def _error(self, message: str, *, at: int | None = None, hint: str = "") -> BadFilter:
        return BadFilter(message, text=self.text, column=(self.at if at is None else at) + 1, hint=hint)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else ""
