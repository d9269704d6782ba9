"""A write of unknown outcome is repeated a few times; its error tells whether it may have been written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from redrive.engine.store_retry import retry_unknown
from redrive.errors import OutcomeUnknown, StoreUnavailable

Write = Callable[[], Awaitable[str]]


def failing(*errors: Exception) -> Write:
    left = list(errors)

    async def write() -> str:
        if left:
            raise left.pop(0)
        return "written"

    return write


async def test_the_answer_says_whether_it_is_that_of_the_first_try() -> None:
    assert await retry_unknown(failing(), [0]) == ("written", True)
    assert await retry_unknown(failing(OutcomeUnknown("?")), [0]) == ("written", False)
    assert await retry_unknown(failing(OutcomeUnknown("?"), StoreUnavailable("no")), [0, 0]) == ("written", False)
    assert await retry_unknown(failing(StoreUnavailable("no")), [0], unavailable=True) == ("written", False)


async def test_what_was_never_sent_is_not_repeated_unless_asked() -> None:
    with pytest.raises(StoreUnavailable):
        await retry_unknown(failing(StoreUnavailable("no")), [0])


@pytest.mark.parametrize("unavailable", [False, True])
async def test_a_try_that_may_have_been_written_is_never_forgotten(unavailable: bool) -> None:
    with pytest.raises(OutcomeUnknown):
        await retry_unknown(failing(OutcomeUnknown("?"), StoreUnavailable("no")), [0], unavailable=unavailable)
