"""What nobody should read over a shoulder: secrets in payloads and texts, by the name of a field and by their looks.

Used for whatever is shown to people: the command line, logs, spreadsheets. What is stored stays as it is. Every pattern
is bounded, so that the time grows with the text alone, whatever the text is.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"

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


def redact(value: Any) -> Any:
    """A JSON value for showing: what its names and looks call secret is covered, all else is as it was."""
    shown: list[Any] = [None]
    # Without recursion: what can be read may be nested deeper than Python likes to go.
    waiting: list[tuple[Any, Any, Any]] = [(value, shown, 0)]
    while waiting:
        part, place, key = waiting.pop()
        if isinstance(part, str):
            place[key] = redact_text(part)
        elif isinstance(part, dict):
            place[key] = copy = dict.fromkeys(part, REDACTED)
            waiting += [(inner, copy, name) for name, inner in part.items() if not _covers(name, inner)]
        elif isinstance(part, list):
            place[key] = items = [None] * len(part)
            waiting += [(inner, items, at) for at, inner in enumerate(part)]
        else:
            place[key] = part
    return shown[0]


def _covers(name: Any, value: Any) -> bool:
    """None, a boolean and what is empty tell nothing, and that they are so may be what somebody looks for."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    return isinstance(name, str) and is_secret_name(name)
