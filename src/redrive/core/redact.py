"""What nobody should read over a shoulder: secrets in payloads and texts, by the name of a field and by their looks.

Used for whatever is shown to people: the command line, logs, spreadsheets. What is stored stays as it is. Every pattern
is bounded, so that the time grows with the text alone, whatever the text is.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"
DEEPEST = 200
"""Levels of a payload that are looked at; what lies below is not shown."""

_NAMES = (
    "password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|"
    "authorization|cookie|credentials?|session[_-]?id|csrf|xsrf|connection[_-]?string"
)
_NAMED = re.compile(_NAMES, re.IGNORECASE)
_WHOLE_NAMES = frozenset({"dsn", "pin", "otp", "cvv", "cvc", "auth", "pass", "jwt", "bearer"})
"""Too short to be looked for inside of other words."""
_NO_SECRETS = re.compile(r"tokens$|_count$|token_type$", re.IGNORECASE)
"""How many tokens a model used is no secret, nor is the kind of one."""

_PEM = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]{0,16384}(-----END [A-Z ]{0,40}PRIVATE KEY-----)?")
_USERINFO = re.compile(r"(://[^\s/@:'\"?#]{0,256}:)(?!\d{1,5}/)[^\s'\"]{1,512}@")
"""Up to the last @: a password may have one, and slashes, if somebody forgot to encode it. A port is none."""
_TOKEN_AS_USER = re.compile(r"(://)[A-Za-z0-9_-]{20,256}@")
_QUOTED = r"\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'"
_HEADER = re.compile(
    rf"((?:authorization|cookie)[\"']?\s{{0,3}}[:=]\s{{0,3}})({_QUOTED}|[^\n\"']{{1,4096}})", re.IGNORECASE
)
_ASSIGNED = re.compile(
    rf"((?:{_NAMES})[\w-]{{0,40}}[\"']?\s{{0,3}}(?:[:=]|=>)\s{{0,3}})({_QUOTED}|[^\s\"',;&(){{}}\[\]]{{1,4096}})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)(\s{1,3})[A-Za-z0-9._~+/=-]{8,4096}", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}"
    r"|xox[abeprs]-[\w-]{10,255}|[rs]k[-_](?:live|test|proj|ant)[-_][\w-]{10,255}|sk-[A-Za-z0-9]{20,255}"
    r"|AIza[\w-]{35}|npm_[A-Za-z0-9]{30,255}|pypi-[\w-]{30,255}"
    r"|eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{0,1024})?)"
)
_HINTS = re.compile(
    rf"{_NAMES}|://|-----BEGIN|bearer|basic|AKIA|gh[pousr]_|github_pat|glpat|xox|[rs]k[-_]|AIza|npm_|pypi-|eyJ",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds what must not be shown."""
    return name.lower() in _WHOLE_NAMES or (_NAMED.search(name) is not None and _NO_SECRETS.search(name) is None)


def redact_text(text: str) -> str:
    """The text with everything covered that looks like a secret or stands behind the name of one."""
    if _HINTS.search(text) is None:
        return text
    text = _PEM.sub(rf"\1{REDACTED}\2", text)
    text = _USERINFO.sub(rf"\1{REDACTED}@", text)
    text = _TOKEN_AS_USER.sub(rf"\1{REDACTED}@", text)
    text = _HEADER.sub(_covered, text)
    text = _ASSIGNED.sub(_covered, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    return _SHAPES.sub(REDACTED, text)


def _covered(found: re.Match[str]) -> str:
    value = found[2]
    quote = value[0] if value[0] in "\"'" and value[0] == value[-1] else ""
    if value.strip(quote) == REDACTED:
        return found[0]
    return f"{found[1]}{quote}{REDACTED}{quote}"


def redact(value: Any, depth: int = 0) -> Any:
    """A JSON value for showing: what its names and looks call secret is covered, all else is as it was."""
    if isinstance(value, str):
        return redact_text(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= DEEPEST:
        return REDACTED
    if isinstance(value, list):
        return [redact(part, depth + 1) for part in value]
    return {name: _field(name, part, depth) for name, part in value.items()}


def _field(name: Any, value: Any, depth: int) -> Any:
    covers = isinstance(name, str) and is_secret_name(name) and value is not None and not isinstance(value, bool)
    return REDACTED if covers and value not in ("", [], {}) else redact(value, depth + 1)
