"""A handle: an object that stands for a resource of this process. It is not copied and not pickled."""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex


class Handle:
    """A copy is the same object: two that close the same resource would each believe to be the only one."""

    _instead = "open it where it is used, by its name and URL"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} stays in its process: {self._instead}")
