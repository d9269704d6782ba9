"""The store URL of a redis-py or valkey-py client: its connection settings, read by duck typing."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from redrive.errors import ConfigError

_TLS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_ciphers")


def client_url(client: Any, namespace: str | None = None) -> str:
    """Raises ConfigError for a client whose settings a URL cannot carry."""
    return _url(_settings(client), namespace)


def _settings(client: Any) -> dict[str, Any]:
    """How the client connects."""
    nodes = getattr(getattr(client, "nodes_manager", None), "startup_nodes", None)
    if isinstance(nodes, dict) and nodes:
        # A namespace is one slot, and MOVED leads to its owner: any node will do.
        node = next(iter(nodes.values()))
        shared = getattr(client.nodes_manager, "connection_kwargs", None) or getattr(client, "connection_kwargs", {})
        return {**shared, "host": node.host, "port": node.port, "db": 0}
    pool = getattr(client, "connection_pool", None)
    kwargs = getattr(pool, "connection_kwargs", None)
    if pool is None or not isinstance(kwargs, dict):
        said = f"a {type(client).__name__} is not a client of redis-py or valkey-py"
        raise ConfigError(said, field="client", hint="give redis.Redis(...), or url='redis://host:6379/0'")
    if "Sentinel" in type(pool).__name__:
        hint = "give url='redis://host:6379/0' of the primary, or of a proxy that follows it"
        raise ConfigError("a Sentinel client has no fixed address", field="client", hint=hint)
    kind = getattr(pool, "connection_class", None)
    return {**kwargs, "ssl": "SSL" in getattr(kind, "__name__", "")}


def _url(settings: dict[str, Any], namespace: str | None) -> str:
    username, password = _credentials(settings)
    secret = "" if password is None else f":{quote(password, safe='')}"
    user = f"{quote(username or '', safe='')}{secret}@" if username or secret else ""
    options = {} if namespace is None else {"namespace": namespace}
    db = int(settings.get("db") or 0)
    path = settings.get("path")
    if path:
        options["db"] = str(db)
        return f"unix://{user}{quote(str(path))}?{urlencode(options)}"
    tls = bool(settings.get("ssl"))
    if tls:
        options |= _tls(settings)
    host = str(settings.get("host") or "localhost")
    where = f"[{host}]" if ":" in host else host
    rest = f"?{urlencode(options)}" if options else ""
    return f"redis{'s' if tls else ''}://{user}{where}:{int(settings.get('port') or 6379)}/{db}{rest}"


def _credentials(settings: dict[str, Any]) -> tuple[str | None, str | None]:
    provider = settings.get("credential_provider")
    if provider is not None:
        given = tuple(provider.get_credentials())
        return (None, _text(given[0])) if len(given) == 1 else (_text(given[0]), _text(given[1]))
    return _text(settings.get("username")), _text(settings.get("password"))


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def _tls(settings: dict[str, Any]) -> dict[str, str]:
    """The TLS options of a store URL. Settings that it cannot carry are refused."""
    options = {name: str(settings[name]) for name in _TLS if settings.get(name)}
    required = settings.get("ssl_cert_reqs", "required")
    words = {0: "none", 1: "optional", 2: "required", None: "none"}
    options["ssl_cert_reqs"] = (
        required if isinstance(required, str) else words[None if required is None else int(required)]
    )
    if settings.get("ssl_ca_data"):
        hint = "write them to a file and give ssl_ca_certs, or give url='rediss://…?ssl_ca_certs=…'"
        raise ConfigError("a store URL cannot carry certificates as text", field="client.ssl_ca_data", hint=hint)
    if "ssl_check_hostname" in settings:
        options["ssl_check_hostname"] = "yes" if settings["ssl_check_hostname"] else "no"
    return options
