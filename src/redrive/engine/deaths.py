"""How worker processes died, as their supervisors saw it, for the reaper that brings back what they held.

One document has the last deaths of the whole store: it is bounded by itself, so that nothing has to be tidied up. It is
evidence only: a death that nobody reported, or that cannot be read, never hinders a rescue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from msgspec import Struct

from redrive.core import codec
from redrive.core.verbs import Document, DocumentWrite, WorkerBeat
from redrive.errors import ConfigError, Conflict, StoreCorrupt, StoreError
from redrive.stores.base import Store

KIND = KEY = "deaths"
KEPT = 500
WHY_LIMIT = 200


class Death(Struct, frozen=True):
    worker: str
    why: str


async def report(store: Store, host: str, pid: int, why: str) -> tuple[str, ...]:
    """Note it for the workers of that process, and name them. A repeat changes nothing."""
    process, reason = _checked_pid(pid), _checked_why(why)
    workers = workers_of(await store.workers(), host, process)
    while workers:
        document = await store.document(KIND, KEY)
        others = [death for death in _deaths(document) if death.worker not in workers]
        body = codec.encode([*others, *(Death(worker, reason) for worker in workers)][-KEPT:])
        expect = 0 if document is None else document.version
        # A conflict is another supervisor's report that was written: whoever loops here is not alone, but not for long.
        with suppress(Conflict):
            await store.write_documents([DocumentWrite(KIND, KEY, body, expect)])
            break
    return workers


async def whys(store: Store, workers: Collection[str | None]) -> dict[str, str]:
    """Why these workers died, as far as anybody said."""
    try:
        document = await store.document(KIND, KEY)
    except StoreError:
        return {}
    return {death.worker: death.why for death in _deaths(document) if death.worker in workers}


def workers_of(beats: Iterable[WorkerBeat], host: str, pid: int) -> tuple[str, ...]:
    """Those of the last process that had this pid, without those that stopped in good order."""
    known = [beat for beat in beats if (beat.facts.host, beat.facts.pid) == (host, pid)]
    # Pids are used again, in a container at once; but two processes never have the same at the same time.
    began = max((beat.facts.started_at for beat in known), default=0)
    last = [beat for beat in known if beat.facts.started_at == began or beat.seen_at >= began]
    return tuple(sorted(beat.worker for beat in last if not beat.facts.stopped))


def _deaths(document: Document | None) -> tuple[Death, ...]:
    if document is None:
        return ()
    try:
        return codec.decode(document.body, tuple[Death, ...])
    except StoreCorrupt:
        return ()


def _checked_pid(pid: object) -> int:
    if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
        raise ConfigError(f"{pid!r} is not the id of a process", field="pid", hint="use the pid of the worker process")
    return pid


def _checked_why(why: object) -> str:
    text = " ".join(why.split()) if isinstance(why, str) else ""
    if not text:
        hint = 'say what is known, such as "killed by SIGSEGV" or "exited with code 3"'
        raise ConfigError(f"{why!r} does not say why", field="why", hint=hint)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= WHY_LIMIT else f"{text[:WHY_LIMIT]}…"
