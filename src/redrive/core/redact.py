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
_NAMED = f"(?i:{_NAMES})"
_WHOLE_NAMES = frozenset({"dsn", "pin", "otp", "cvv", "cvc", "auth", "pass", "jwt", "bearer"})
"""Too short to be looked for inside of other words."""
_NO_SECRETS = r"(?i:tokens$|_count$|token_type$)"
"""How many tokens a model used is no secret, nor is the kind of one."""

# Texts, which `re` compiles when they are first used, and keeps: most programs never need them.
_PEM = r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]{0,16384}(-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
_USERINFO = r"(://[^\s/@:'\"?#]{0,256}:)(?!\d{1,5}/)[^\s'\"]{1,512}@"
"""Up to the last @: a password may have one, and slashes, if somebody forgot to encode it. A port is none."""
_USER_ALONE = r"(://)[A-Za-z0-9_-]{20,256}@"
_QUOTED = r"\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'"
_HEADER = rf"((?i:authorization|cookie)[\"']?\s{{0,3}}[:=]\s{{0,3}})({_QUOTED}|[^\n\"']{{1,4096}})"
_ASSIGNED = (
    rf"({_NAMED}[\w-]{{0,40}}[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}})"
    rf"(\[redacted\]|{_QUOTED}|[^\s\"',;&(){{}}\[\]]{{1,4096}})"
)
_BEARER = r"\b((?i:bearer|basic))(\s{1,3})[A-Za-z0-9._~+/=-]{8,4096}"
_SHAPES = (
    r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,255}"
    r"|xox[abeprs]-[\w-]{10,255}|[rs]k[-_](?:live|test|proj|ant)[-_][\w-]{10,255}|sk-[A-Za-z0-9]{20,255}"
    r"|AIza[\w-]{35}|npm_[A-Za-z0-9]{30,255}|pypi-[\w-]{30,255}"
    r"|eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{0,1024})?)"
)
_HINTS = (
    rf"(?i:{_NAMES}|bearer|basic)|://|-----BEGIN|AKIA|gh[pousr]_|github_pat|glpat|xox|[rs]k[-_]|AIza|npm_|pypi-|eyJ"
)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds what must not be shown."""
    return name.lower() in _WHOLE_NAMES or (
        re.search(_NAMED, name) is not None and re.search(_NO_SECRETS, name) is None
    )


def redact_text(text: str) -> str:
    """The text with everything covered that looks like a secret or stands behind the name of one."""
    if re.search(_HINTS, text) is None:
        return text
    text = re.sub(_PEM, rf"\1{REDACTED}\2", text)
    text = re.sub(_USERINFO, rf"\1{REDACTED}@", text)
    text = re.sub(_USER_ALONE, rf"\1{REDACTED}@", text)
    text = re.sub(_HEADER, _covered, text)
    text = re.sub(_ASSIGNED, _covered, text)
    text = re.sub(_BEARER, rf"\1\2{REDACTED}", text)
    return re.sub(_SHAPES, REDACTED, text)


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
