"""Reports of how many things happened since the last report: each is counted in one report, whatever crashes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct

from redrive.core import codec
from redrive.core.item import Instant, Millis
from redrive.core.verbs import DocumentWrite
from redrive.errors import Conflict
from redrive.stores.base import Store


class _Counted(Struct, frozen=True):
    """What happened until then is counted. `count`: of the report that is not known to be put yet, or 0."""

    until: Instant
    count: int = 0


async def report_count(
    store: Store,
    kind: str,
    count: Callable[[Instant, Instant], Awaitable[int]],
    put: Callable[[str, int], Awaitable[None]],
    *,
    first: Millis,
) -> None:
    """`count(after, until)` things are given to `put` under an id, unless they are none. The number is written to a
    document of this `kind` before that: after a crash in between it is put again, under the same id. The first report
    goes back for this long.
    """
    while True:
        document, now = await store.document(kind, kind), (await store.tally(members=False)).at
        last = _Counted(now - first) if document is None else codec.decode(document.body, _Counted)
        if last.count:
            await put(f"{kind}-{last.until}", last.count)
            next_one = _Counted(last.until)
        else:
            next_one = _Counted(now, await count(last.until, now))
            if not next_one.count:
                return
        expect = 0 if document is None else document.version
        with suppress(Conflict):  # another process reports
            await store.write_documents([DocumentWrite(kind, kind, codec.encode(next_one), expect)])
