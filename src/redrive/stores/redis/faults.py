"""What Redis says, in redrive's words. The one place that reads its errors.

Every script reads and judges before it writes (lua/prelude.lua), so a reply that is an error says that nothing
happened. Only a reply that never came leaves it open.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.errors import (
    EncryptionKeyMissing,
    OutcomeUnknown,
    RedriveError,
    StoreCorrupt,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from redrive.stores.redis.wire import Refused


class _Said(NamedTuple):
    kind: type[StoreError]
    text: str
    hint: str = ""


_AGAIN = "it is asked again by itself"
_FORBIDDEN = _Said(StoreForbidden, "the server does not let this user in", "check the user and the password in the URL")
_NO_RIGHTS = _Said(
    StoreForbidden,
    "this user may not do what redrive needs",
    "grant it: ACL SETUSER <user> +@all -@admin ~{namespace}:* &{namespace}:wake",
)
_REPLICA = _Said(StoreForbidden, "the server is a read-only replica", "give the address of its primary")
_FULL = _Said(
    StoreFull,
    "the server has reached its maxmemory",
    "give it more memory, or remove something: app.letters.discard(...) and app.prune(...) still work",
)

# By the first word of a reply.
_BY_WORD = {
    "OOM": _FULL,
    "NOAUTH": _FORBIDDEN,
    "WRONGPASS": _FORBIDDEN,
    "NOPERM": _NO_RIGHTS,
    "READONLY": _REPLICA,
    "LOADING": _Said(StoreUnavailable, "the server is loading its data", _AGAIN),
    "BUSY": _Said(StoreUnavailable, "the server is busy with a script", _AGAIN),
    "MASTERDOWN": _Said(StoreUnavailable, "the server has lost its primary", "give the address of the primary"),
    "CLUSTERDOWN": _Said(StoreUnavailable, "the cluster is down", "see CLUSTER INFO"),
    "TRYAGAIN": _Said(StoreUnavailable, "the slot of the namespace is being moved", _AGAIN),
    "ASK": _Said(StoreUnavailable, "the slot of the namespace is being moved", _AGAIN),
    "MOVED": _Said(StoreUnavailable, "the nodes of the cluster do not agree on who has the namespace", _AGAIN),
    "MISCONF": _Said(StoreUnavailable, "the server refuses writes because it cannot save", "see its log and its disk"),
    "NOREPLICAS": _Said(StoreUnavailable, "the server has too few replicas to write", "see min-replicas-to-write"),
}
_DATABASE = _Said(
    StoreUnavailable,
    "the server has no database of this number",
    "it has 0 to 15 unless its setting `databases` says otherwise; to keep apart what shares one, use ?namespace=NAME",
)
_CLUSTER = _Said(
    StoreUnavailable,
    "a cluster has no database but 0",
    "end the URL with /0; to keep apart what shares one, use ?namespace=NAME",
)
_NO_DATABASE = "DB index is out of range"
_ONE_DATABASE = "SELECT is not allowed in cluster mode"
_CORRUPT = "REDRIVE CORRUPT "
_ENCRYPT = "REDRIVE ENCRYPT "
_IN_A_SCRIPT = "The user executing the script"
_OF_A_PASSWORD = "ERR AUTH"  # noqa: S105 - how it begins to say that there is none


def is_reply(error: BaseException) -> bool:
    """Whether the server said so."""
    return isinstance(error, Refused)


def is_trouble(error: BaseException) -> bool:
    """Of the network, of the server, or the time is up."""
    return isinstance(error, Refused | OSError | TimeoutError)


def refused(error: Exception, where: str) -> RedriveError:
    """A reply that is an error: nothing happened."""
    text = str(error)
    if _ENCRYPT in text:
        name = text.partition(_ENCRYPT)[2].partition(" ")[0]
        return EncryptionKeyMissing(bytes.fromhex(name).decode())
    if _CORRUPT in text:
        what = text.partition(_CORRUPT)[2].partition(" script: ")[0]
        return StoreCorrupt(f"{where}: {what}", hint="another program uses keys of this namespace")
    said = _said(text)
    return said.kind(f"{said.text}: {where}: {text}", hint=said.hint)


def _said(text: str) -> _Said:
    if _NO_DATABASE in text:
        return _DATABASE
    if _ONE_DATABASE in text:
        return _CLUSTER
    if _IN_A_SCRIPT in text:
        return _NO_RIGHTS
    if _OF_A_PASSWORD in text:
        return _FORBIDDEN
    return _BY_WORD.get(text.partition(" ")[0], _Said(StoreUnavailable, "the server refused"))


def unreachable(error: BaseException, where: str) -> StoreUnavailable:
    """It was not sent."""
    why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    tls = ", and that it speaks TLS" if where.startswith("rediss:") else ""
    return StoreUnavailable(
        f"the server cannot be reached: {where}: {why}", hint=f"check that it runs, its address and its port{tls}"
    )


def unanswered(error: BaseException, where: str) -> OutcomeUnknown:
    """It was sent, and what became of it is not known."""
    why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return OutcomeUnknown(
        f"the connection was lost before the answer came: {where}: {why}", hint="repeat it with the same ids"
    )


def translated(error: BaseException, where: str) -> RedriveError:
    """Of something that cannot be half done: connecting and reading."""
    if isinstance(error, RedriveError):
        return error
    if isinstance(error, Exception) and is_reply(error):
        return refused(error, where)
    return unreachable(error, where)
