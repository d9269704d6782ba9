"""The mirror: one of several processes writes the copy; what a copy is, the door says (tests/receipts)."""

from __future__ import annotations

from redrive.engine.mirror import LOOK_EVERY, TERM, WRITE_EVERY, Mirror
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock


class Copy:
    """A copy of a number, kept by one process."""

    def __init__(self, store: MemoryStore, clock: FakeClock, original: list[int]) -> None:
        self.written: list[int] = []
        self.errors: list[str] = []
        self.full = False
        self.intact = True
        self._original = original
        self.mirror = Mirror(
            "copy",
            store,
            clock,
            signature=self._signature,
            write=self._write,
            failed=self._failed,
            is_intact=self._is_intact,
        )

    async def _signature(self) -> object:
        return self._original[-1]

    async def _is_intact(self) -> bool:
        return self.intact

    async def _write(self) -> None:
        if self.full:
            raise OSError("no room")
        self.written.append(self._original[-1])
        self.intact = True

    def _failed(self, error: Exception) -> None:
        self.errors.append(str(error))


async def test_the_elected_one_writes_what_it_is_told_and_what_others_change_and_the_next_one_takes_over() -> None:
    clock, original = FakeClock(autoadvance=True), [1]
    store = MemoryStore(clock)
    await store.open()
    first = Copy(store, clock, original)
    await clock.sleep(WRITE_EVERY)
    second = Copy(store, clock, original)
    await clock.sleep(LOOK_EVERY)
    assert (first.written, second.written) == ([1], [])
    original.append(2)  # in another process
    await clock.sleep(LOOK_EVERY)
    original.append(3)
    second.mirror.change()
    await clock.sleep(LOOK_EVERY)
    assert (first.written, second.written) == ([1, 2, 3], [])
    first.full = True
    original.append(4)
    first.mirror.change()
    await clock.sleep(3 * LOOK_EVERY)
    assert first.errors == ["no room"], "the first of several"
    first.full = False
    await first.mirror.close()
    assert first.written == [1, 2, 3, 4]
    await clock.sleep(TERM)
    original.append(5)
    await clock.sleep(LOOK_EVERY)
    assert second.written == [4, 5]
    await second.mirror.close()
    await store.close()


async def test_a_copy_that_is_not_intact_is_written_again_once() -> None:
    clock = FakeClock(autoadvance=True)
    store = MemoryStore(clock)
    await store.open()
    copy = Copy(store, clock, [1])
    await clock.sleep(LOOK_EVERY)
    copy.intact = False
    await clock.sleep(3 * LOOK_EVERY)
    assert copy.written == [1, 1]
    await copy.mirror.close()
    await store.close()
