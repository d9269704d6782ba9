"""Validation of HTTP URLs, bearer tokens and listen addresses. Needs no HTTP client."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.errors import ConfigError

_NOT_IN_HOSTS = frozenset(' "%<>\\^`{|}')


def check_http_url(url: object, *, field: str, secret: str) -> SplitResult:
    """The parts of the URL. Raises ConfigError, never with a password; `secret` names the place for one."""
    hint = "use a URL such as https://service.example"
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"must be a URL, got {shown(url)}", field=field, hint=hint)
    text = redact_text(shown(url))
    if not url.strip().isprintable():  # urlsplit removes some of these characters
        raise ConfigError(f"{text} contains characters that cannot be printed", field=field, hint=hint)
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, parts.hostname or ""
        host.encode("idna")
    except ValueError as error:
        raise ConfigError(f"{text}: {error}", field=field, hint=hint) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("it contains a user or a password", field=field, hint=f"give the secret as {secret}")
    # An IPv6 address may name its zone after a %.
    name = host.partition("%")[0] if ":" in host else host
    if parts.scheme not in ("http", "https") or not name or not _NOT_IN_HOSTS.isdisjoint(name) or port == 0:
        raise ConfigError(f"{text} is not an http or https URL", field=field, hint=hint)
    return parts


def check_token(token: object, *, field: str) -> str:
    """The token without blanks around it; "" for None. No error shows the value."""
    if token is None:
        return ""
    if not isinstance(token, str) or not token.strip() or not token.isascii() or not token.isprintable():
        hint = "use printable ASCII, or leave it out for none"
        raise ConfigError("it cannot be sent in a header", field=field, hint=hint)
    return token.strip()


def check_address(text: object, *, field: str) -> tuple[str, int]:
    """Host and port of a listen address HOST:PORT. Raises ConfigError."""
    found = (
        re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]+):([0-9]{1,5})", text.strip())
        if isinstance(text, str)
        else None
    )
    if found is None or int(found[2]) > 65_535:
        hint = "use HOST:PORT, such as 127.0.0.1:8080 or [::]:8080; port 0 takes a free port"
        raise ConfigError(f"{redact_text(shown(text))} is not an address to listen on", field=field, hint=hint)
    return found[1].strip("[]"), int(found[2])
