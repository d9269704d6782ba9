"""Who waits for whom, among new items: whether it can ever end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def cycle(after: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """A ring of items that wait for each other, its first also at its end; empty if there is none.

    Ids that are not among the keys exist already, and what exists never waits for what is new.
    """
    finished: set[str] = set()
    for start in after:
        if start not in finished and (ring := _from(start, after, finished)):
            return ring
    return ()


def _from(start: str, after: Mapping[str, Sequence[str]], finished: set[str]) -> tuple[str, ...]:
    """Depth first and without recursion: chains may be long."""
    path: list[tuple[str, Iterator[str]]] = [(start, iter(after[start]))]
    on_path = {start}
    while path:
        here, awaited = path[-1]
        onward = next(awaited, None)
        if onward is None:
            finished.add(here)
            on_path.discard(here)
            path.pop()
        elif onward in on_path:
            chain = [name for name, _ in path]
            return (*chain[chain.index(onward) :], onward)
        elif onward in after and onward not in finished:
            path.append((onward, iter(after[onward])))
            on_path.add(onward)
    return ()
