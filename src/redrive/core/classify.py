"""What kind of failure it was, which rule says so, and which letters share a cause.

An explicit code outranks the exception's type, the type outranks words in its text, and the built-in table answers
where no rule of the user's does. The rule that fired is part of the verdict, so nobody has to guess.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from redrive.core.backoff import Backoff, Custom, as_backoff
from redrive.core.item import Frame
from redrive.errors import ConfigError

Action = Literal["retry", "dead", "keep", "limit"]
What = type[BaseException] | int | str

RATE_LIMIT = "rate_limit"
_LONGEST_NAME = 80


class Rule(Struct, frozen=True):
    """Made by retry_on, dead_on, never_dead and rate_limited. Any of the codes, types or words is enough for a match.

    Without a category of its own a rule leaves the one the built-in table gives.
    """

    action: Action
    name: str
    codes: tuple[str, ...] = ()
    errors: tuple[type[BaseException], ...] = ()
    words: tuple[str, ...] = ()
    category: str | None = None
    backoff: Backoff | None = None
    ceiling: int | None = None


class Verdict(Struct, frozen=True):
    category: str
    rule: str
    action: Action


def retry_on(
    *what: What,
    code: str | int | tuple[str | int, ...] = (),
    backoff: Backoff | Custom | None = None,
    category: str | None = None,
    name: str | None = None,
) -> Rule:
    """Retry these, within the policy's limits, with a backoff of their own where one is given.

    Exception types match with their subclasses, integers are codes, strings are whole words or phrases in the error's
    text, in any case. `code` takes codes that are strings.
    """
    return _rule("retry", what, code, backoff=backoff, category=category, name=name)


def dead_on(
    *what: What,
    code: str | int | tuple[str | int, ...] = (),
    category: str | None = None,
    name: str | None = None,
) -> Rule:
    """Trying these again is useless: the first one makes a dead letter. See retry_on for what may be given."""
    return _rule("dead", what, code, category=category, name=name)


def never_dead(
    *what: What,
    code: str | int | tuple[str | int, ...] = (),
    ceiling: int = 1000,
    backoff: Backoff | Custom | None = None,
    category: str | None = None,
    name: str | None = None,
) -> Rule:
    """Retry these beyond max_attempts and max_age, up to `ceiling` errors. See retry_on for what may be given."""
    return _rule("keep", what, code, backoff=backoff, category=category, name=name, ceiling=_ceiling(ceiling))


def rate_limited(
    *what: What,
    code: str | int | tuple[str | int, ...] = (),
    backoff: Backoff | Custom | None = None,
    name: str | None = None,
) -> Rule:
    """The other side asks for patience: these cost no attempt and never kill. See retry_on for what may be given.

    The built-in table says so of code 429 and of errors that are called or speak of a rate limit; `retry_on(429)` makes
    an error of it that counts like any other.
    """
    return _rule("limit", what, code, backoff=backoff, category=RATE_LIMIT, name=name)


def classify(
    error_type: type[BaseException] | None, code: str | None, text: str, rules: Sequence[Rule] = ()
) -> Verdict:
    """The first rule that matches by code, else by type, else by words, else the built-in table.

    The table retries everything, and charges nothing for a rate limit.
    """
    rule = _first(error_type, code, text, rules) if rules else None
    if rule is not None and rule.category is not None:
        return Verdict(rule.category, rule.name, rule.action)
    category = _default(error_type, code, text)
    if rule is not None:
        return Verdict(category, rule.name, rule.action)
    name = "default" if category == "error" else f"default:{category}"
    return Verdict(category, name, "limit" if category == RATE_LIMIT else "retry")


def _first(error_type: type[BaseException] | None, code: str | None, text: str, rules: Sequence[Rule]) -> Rule | None:
    if code is not None:
        for rule in rules:
            if code in rule.codes:
                return rule
    if error_type is not None:
        for rule in rules:
            if rule.errors and issubclass(error_type, rule.errors):
                return rule
    for rule in rules:
        if rule.words and _phrases(rule.words).search(text):
            return rule
    return None


@lru_cache(maxsize=256)
def _phrases(words: tuple[str, ...]) -> re.Pattern[str]:
    # \b would not do: it needs a word character at the edge, and a phrase may begin or end with a sign.
    options = "|".join(r"\s+".join(re.escape(part) for part in phrase.split()) for phrase in words)
    return re.compile(rf"(?<!\w)(?:{options})(?!\w)", re.IGNORECASE)


def _rule(
    action: Action,
    what: Sequence[What],
    code: str | int | tuple[str | int, ...],
    *,
    backoff: Backoff | Custom | None = None,
    category: str | None = None,
    name: str | None = None,
    ceiling: int | None = None,
) -> Rule:
    codes = [_code(one) for one in (code if isinstance(code, tuple) else (code,))]
    errors: list[type[BaseException]] = []
    words: list[str] = []
    for one in what:
        if isinstance(one, str):
            words.append(_words(one))
        elif isinstance(one, type) and issubclass(one, BaseException):
            errors.append(one)
        else:
            codes.append(_code(one))
    if not codes and not errors and not words:
        raise ConfigError("a rule must match something", field="rules", hint="give exception types, codes or words")
    return Rule(
        action,
        _name(codes, errors, words) if name is None else _own_name(name),
        tuple(codes),
        tuple(errors),
        tuple(words),
        category,
        None if backoff is None else as_backoff(backoff),
        ceiling,
    )


def _ceiling(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{value!r} cannot be used", field="ceiling", hint="use a whole number of at least 1")
    return value


def _code(value: object) -> str:
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text:
        raise ConfigError(
            f"{value!r} cannot be matched", field="rules", hint="give exception types, codes such as 429, or words"
        )
    return text


def _words(value: str) -> str:
    text = " ".join(value.split())
    if not text:
        raise ConfigError("an empty text would match nothing", field="rules", hint="give a word or phrase")
    return text


def type_name(kind: type[BaseException]) -> str:
    """The name of an error in evidence: with its module, except Python's own."""
    return kind.__qualname__ if kind.__module__ == "builtins" else qualified_name(kind)


def qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _own_name(name: str) -> str:
    if not name.strip() or name.startswith("default"):
        raise ConfigError(
            f"{name!r} cannot name a rule",
            field="name",
            hint="use a word; names with default belong to the built-in table",
        )
    return name.strip()


def _name(codes: Iterable[str], errors: Iterable[type[BaseException]], words: Iterable[str]) -> str:
    groups = {"code": codes, "error": (error.__name__ for error in errors), "words": words}
    parts = ((kind, ",".join(values)) for kind, values in groups.items())
    name = " ".join(f"{kind}:{values}" for kind, values in parts if values)
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


_CODES = {
    "401": "auth",
    "403": "auth",
    "404": "not_found",
    "408": "timeout",
    "410": "not_found",
    "429": RATE_LIMIT,
    "504": "timeout",
}
# The first that fits wins, so a subclass stands before its base.
_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionError, "connection"),
    (PermissionError, "permission"),
    (FileNotFoundError, "not_found"),
    (MemoryError, "resource"),
    (RecursionError, "bug"),
    (UnicodeError, "data"),
    (ValueError, "data"),
    (LookupError, "data"),
    (ArithmeticError, "data"),
    (TypeError, "bug"),
    (AttributeError, "bug"),
    (NameError, "bug"),
    (AssertionError, "bug"),
    (ImportError, "bug"),
    (NotImplementedError, "bug"),
)
# HTTP and database clients derive from Exception, but they agree on names; core may not import them to ask.
_TYPE_NAMES = re.compile(
    r"(?P<timeout>Timeout|TimedOut)"
    r"|(?P<rate_limit>RateLimit|TooManyRequests|Throttl)"
    r"|(?P<connection>Connection|ConnectError|NetworkError|gaierror|herror|SSLError|ProtocolError)"
    r"|(?P<auth>Unauthori[sz]ed|Forbidden|AuthenticationError|AuthError)"
    r"|(?P<data>ValidationError|DecodeError)"
)
_TEXTS = re.compile(
    r"(?P<resource>no space left|out of memory|too many open files|disk (?:is )?full|disk quota)"
    r"|(?P<rate_limit>rate limit|too many requests)"
    r"|(?P<timeout>timed out|time-?out\b)"
    r"|(?P<connection>connection (?:was )?(?:refused|reset|closed|aborted)|name or service not known"
    r"|network is unreachable|no route to host|broken pipe)",
    re.IGNORECASE,
)


def _default(error_type: type[BaseException] | None, code: str | None, text: str) -> str:
    if code is not None:
        category = _by_code(code)
        if category is not None:
            return category
    if error_type is not None:
        category = _by_type(error_type)  # type: ignore[arg-type]  # mypy asks the instance's __hash__, not the class's
        if category is not None:
            return category
    found = _TEXTS.search(text)
    if found is not None and found.lastgroup is not None:
        return found.lastgroup
    return "io" if error_type is not None and issubclass(error_type, OSError) else "error"


def _by_code(code: str) -> str | None:
    if code in _CODES:
        return _CODES[code]
    if len(code) == 3 and code.isdecimal():
        return {"4": "rejected", "5": "server"}.get(code[0])
    return None


@lru_cache(maxsize=256)
def _by_type(error_type: type[BaseException]) -> str | None:
    for known, category in _TYPES:
        # A library's own kind of ValueError may still tell more by its name (json.JSONDecodeError is data either way).
        if error_type is known:
            return category
    for ancestor in error_type.__mro__:
        found = None if ancestor.__module__ == "builtins" else _TYPE_NAMES.search(ancestor.__name__)
        if found is not None:
            return found.lastgroup
    for known, category in _TYPES:
        if issubclass(error_type, known):
            return category
    return None


_FRAMES = 3
_LONGEST_TEXT = 300
# Ids may shorten the text a lot, so more of it is read than is kept; the bound keeps hostile texts cheap.
_READ_TEXT = 2000
_FOREIGN = ("site-packages/", "dist-packages/", "lib/python3")
_PACKAGE = __file__.replace("\\", "/").rsplit("/", 2)[0] + "/"

_QUOTED = re.compile(r"""(?<!\w) (?: '[^'0-9]*[0-9][^']*' | "[^"0-9]*[0-9][^"]*" )""", re.VERBOSE)
# Every alternative starts where no word is under way, or with a digit, so that the search stays linear.
_VARIABLE = re.compile(
    r"""
      \? [\w.%~-]+ = [^\s"'<>)\]]*                                                        # the query of a url
    | (?<![\w.+-]) [\w.+-]+ @ [\w-]+ (?:\.[\w-]+)+                                        # email
    | (?<![\w-]) (?=[A-Za-z_-]*[0-9]) (?=[0-9a-z_-]*[A-Z]) [\w-]{20,}                     # url-safe base64
    | (?<![0-9A-Za-z]) (?:
          0[xX] [0-9a-fA-F]+                                                              # address
        | [0-9a-fA-F]{8} (?:-[0-9a-fA-F]{4}){3} - [0-9a-fA-F]{12}                         # uuid
        | [0-9a-fA-F]{8,} (?![0-9A-Za-z])                                                 # digest
        | (?=[A-Za-z]*[0-9]) [0-9A-Za-z]{8,} (?![0-9A-Za-z])                              # letters and digits
      )
    | (?<![\w:]) (?:[0-9a-fA-F]{0,4}:){2,7} [0-9a-fA-F]{0,4} (?![\w:])                    # IPv6
    | (?: (?<![\w)\]]) [-+] )? [0-9]+ (?: [.,:/T-] [0-9]+ )* (?: [eE] [-+]? [0-9]+ )? Z?  # numbers, dates, times, IPv4
    """,
    re.VERBOSE,
)
_RUN = re.compile(r"#(?:[\s,;:./_+-]*#)+")


# What an answer says by its status is no number among others. Only where it can be nothing else: a house may have 404.
_STATUS = re.compile(r"[45][0-9]{2}")
_STATUS_IN = re.compile(
    r"""
      (?<![\w/]) (?: https? (?:/[0-9](?:\.[0-9])?)? | status | code )
          (?: [ _-]? (?:status|error|code|response) ){0,3} (?: \s | [:=\#\[(] ){1,4}
          (?P<after> [45][0-9]{2} ) (?! [\w.,:/-]*[0-9] )
    | ['"] (?P<quoted> [45][0-9]{2} ) \s (?:
          bad\ (?:request|gateway) | unauthori[sz]ed | payment\ required | forbidden | method\ not\ allowed
        | not\ (?:found|acceptable|implemented) | (?:request|gateway)\ time-?out | conflict | gone | locked
        | precondition\ failed | unprocessable | too\ many\ requests | internal\ server\ error | service\ unavailable
      )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def fingerprint(error_type_name: str, text: str, frames: Sequence[Frame], code: str | None = None) -> str:
    """The cause id: the same for failures that differ only in ids, numbers, addresses and line numbers.

    An HTTP status of an error is a difference: `code` that the error has, else the one that its text speaks of.
    """
    read = text[:_READ_TEXT]
    whole = f"{error_type_name}\n{_normalised(read)}\n{_place(tuple(frames))}"
    status = code if code is not None and _STATUS.fullmatch(code) else _status_in(read)
    if status:
        whole += f"\n{status}"
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:12]


@lru_cache(maxsize=1024)
def _status_in(text: str) -> str:
    # Most texts have no such number at all, and to see that is a hundred times as quick.
    found = _STATUS_IN.search(text) if _STATUS.search(text) else None
    return "" if found is None else found["after"] or found["quoted"]


def normalise(text: str) -> str:
    """The text with all that varies between two failures of one cause replaced by #."""
    return _normalised(text[:_READ_TEXT])


@lru_cache(maxsize=1024)
def _normalised(text: str) -> str:
    if "'" in text or '"' in text:
        text = _QUOTED.sub("#", text)
    # Most words are plain, and asking a word is four times as quick as searching the whole text.
    words = [word if word.isalpha() else _VARIABLE.sub("#", word) for word in text.split()]
    return _RUN.sub("#", " ".join(words))[:_LONGEST_TEXT]


@lru_cache(maxsize=1024)
def _place(frames: tuple[Frame, ...]) -> str:
    own = [frame for frame in frames if _is_own(frame.file)][-_FRAMES:] or frames[-1:]
    return "\n".join(f"{_short(frame.file)}:{frame.function}" for frame in own)


def _is_own(file: str) -> bool:
    path = file.replace("\\", "/")
    return not (path.startswith(("<frozen", _PACKAGE)) or any(part in path for part in _FOREIGN))


def _short(file: str) -> str:
    return "/".join(file.replace("\\", "/").split("/")[-2:])
