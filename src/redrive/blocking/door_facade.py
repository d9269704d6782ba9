"""The blocking side of a door: a class whose methods run those of an async object in the loop thread.

class Client(Facade[asynchronous.Client]):
    @like(asynchronous.Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._attach(asynchronous.Client(*args, **kwargs), door="redrive.example")

    send = blocking(asynchronous.Client.send)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from redrive.app.nesting import Nesting
from redrive.blocking.loop_thread import LoopThreadHost

P = ParamSpec("P")
T = TypeVar("T")


class Resource(Protocol):
    async def open(self) -> Any: ...

    async def close(self) -> None: ...


A = TypeVar("A", bound=Resource)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method with the same signature and docstring, run in the loop thread."""
    name = method.__name__

    @wraps(method)
    def call(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._host.call(getattr(self._behind, name), *args, **kwargs)
        return result

    return call


def like(made: Callable[Concatenate[Any, P], object]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Gives a method the signature and docstring of another one."""
    return wraps(made)


class Facade(Generic[A]):
    """`behind` is opened, used and closed in the loop thread; a view of another facade's is neither opened nor closed.

    `door` is the package whose names are to be imported in an event loop.
    """

    _behind: A
    _host: LoopThreadHost

    def _attach(self, behind: A, *, door: str = "", host: LoopThreadHost | None = None) -> None:
        instead = f"import from {door}, and `await` {{name}}(...)"
        self._behind, self._own, self._nesting = behind, host is None, Nesting()
        self._host = host or LoopThreadHost(behind, what=f"{{name}} of {door}.blocking", instead=instead)

    def open(self) -> Self:
        if self._own:
            self._host.open(self._behind.open)
        return self

    def close(self) -> None:
        if self._own:
            self._host.close(self._behind.close)

    def __enter__(self) -> Self:
        self.open()
        self._nesting.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nesting.leave():
            self.close()
