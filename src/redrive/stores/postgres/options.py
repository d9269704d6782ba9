"""What a PostgreSQL store is told: where it is, and how to treat the connections to it. Nothing here needs psycopg."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from redrive.core import durations
from redrive.core.item import Millis
from redrive.errors import BadStoreURL, ConfigError

SCHEMA = "redrive"
POOL = 8
TIMEOUT = "10s"
CONNECT_TIMEOUT = "5s"
POLL = "1s"

FORM = "postgresql://user:password@host:5432/database"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = r"(?:\[[^\]@,]*\]|[^\[\]:@,]*)(?::[0-9]*)?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")
_MOST_CONNECTIONS = 1_000

PASSED_ON = frozenset(
    {
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "service",
        "require_auth",
        "channel_binding",
        "application_name",
        "fallback_application_name",
        "options",
        "target_session_attrs",
        "load_balance_hosts",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "sslmode",
        "sslnegotiation",
        "sslcompression",
        "sslcert",
        "sslkey",
        "sslkeylogfile",
        "sslpassword",
        "sslcertmode",
        "sslrootcert",
        "sslcrl",
        "sslcrldir",
        "sslsni",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "min_protocol_version",
        "max_protocol_version",
        "requirepeer",
        "gssencmode",
        "krbsrvname",
        "gsslib",
        "gssdelegation",
        "scram_client_key",
        "scram_server_key",
        "oauth_issuer",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_scope",
    }
)
"""What libpq takes in the query of a URL, without what we say ourselves (connect_timeout, client_encoding)."""


@dataclass(frozen=True)
class Options:
    """`url` has the password in it, if there is one, and is therefore never shown; `location` is."""

    url: str = field(repr=False)
    schema: str = SCHEMA
    pool: int = POOL
    timeout: Millis = 10_000
    connect_timeout: Millis = 5_000
    notify: bool = True
    poll: Millis = 1_000
    location: str = ""

    @property
    def quoted(self) -> str:
        """The schema as it stands in statements."""
        return f'"{self.schema}"'

    @property
    def server(self) -> str:
        """The database as other programs know it, which know nothing of our options."""
        return self.location.partition("?")[0]

    @property
    def database(self) -> str:
        return self.server.rpartition("/")[2] or "…"

    @property
    def channel(self) -> str:
        """Where wake-ups are heard. A schema's name may be as long as any name may be, so it is not in this one."""
        return f"redrive:{self.schema}" if len(self.schema) < 50 else f"redrive:{hash_of(self.schema):016x}"


def hash_of(text: str) -> int:
    """The same in every process, unlike Python's own (FNV-1a)."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def make(
    url: str,
    *,
    schema: str,
    pool: int,
    timeout: durations.Duration,
    connect_timeout: durations.Duration,
    notify: bool,
    poll: durations.Duration,
) -> Options:
    return Options(
        url,
        check_schema(schema),
        check_pool(pool),
        positive(timeout, field="timeout"),
        positive(connect_timeout, field="connect_timeout"),
        notify,
        positive(poll, field="poll"),
        location(url) + ("" if schema == SCHEMA else f"?schema={schema}"),
    )


def check_schema(name: str, *, field: str = "schema") -> str:
    if name.startswith("pg_") or name == "information_schema":
        raise ConfigError(f"{name} is PostgreSQL's own", field=field, hint="use another name for the schema")
    if not _NAME.fullmatch(name):
        hint = "small letters, digits and _, at most 63, the first no digit"
        raise ConfigError(f"{name!r} is not a name for a schema", field=field, hint=hint)
    return name


def check_pool(size: int, *, field: str = "pool") -> int:
    if not 1 <= size <= _MOST_CONNECTIONS:
        hint = "so many connections a process may have at once; the default is 8"
        raise ConfigError(f"must be between 1 and {_MOST_CONNECTIONS}, not {size}", field=field, hint=hint)
    return size


def positive(value: durations.Duration, *, field: str) -> Millis:
    millis = durations.parse(value, field=field)
    if millis <= 0:
        raise ConfigError("must be longer than nothing", field=field, hint='for example "10s"')
    return millis


def location(url: str) -> str:
    """For people: without the password, and without the query, in which one might stand as well."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadStoreURL("this is not a URL", field="store", hint=f"use {FORM}") from None
    if parts.scheme not in {"postgresql", "postgres"}:
        raise BadStoreURL("this is not a PostgreSQL URL", field="store", hint=f"use {FORM}")
    user, at, hosts = parts.netloc.rpartition("@")
    # A password with a / or a ? in it ends too early, and its rest would be taken for something to be shown. And what
    # follows the first @ is the host to libpq.
    if "@" in user or "@" in parts.path or (not at and "@" in parts.query) or not _HOSTS.fullmatch(hosts):
        hint = f"use {FORM}, and percent-encode what is special in a password, as %2F for / and %40 for @"
        raise BadStoreURL("what stands before the database is not user:password@host:port", field="store", hint=hint)
    return f"postgresql://{user.partition(':')[0]}{at}{hosts}{parts.path}"
