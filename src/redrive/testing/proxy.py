"""Proof that a store can be used over a wire: nothing but bytes passes between the caller and the store."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, get_type_hints

from redrive.core import codec
from redrive.stores.base import Store
from redrive.testing._relay import Answer, P, Relay


class EncodingProxy(Relay):
    """Encodes every argument and answer with `core.codec` and decodes it as the type that `Store` declares.

    So a value that does not survive the way, or a store that answers something other than the protocol says, shows as
    an error or as a difference. Errors of the store itself pass through.
    """

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        signature, hints = _contract(verb.__name__)
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _over_the_wire(value, hints[name])
        answer: Any = await verb(*bound.args, **bound.kwargs)
        result: Answer = _over_the_wire(answer, hints["return"])
        return result


def _over_the_wire(value: object, kind: Any) -> Any:
    return codec.decode(codec.encode(value), kind)


@lru_cache(maxsize=64)
def _contract(verb: str) -> tuple[inspect.Signature, dict[str, Any]]:
    """The verb's parameters and types as the protocol has them, without `self`."""
    declared = getattr(Store, verb)
    signature = inspect.signature(declared)
    parameters = list(signature.parameters.values())[1:]
    return signature.replace(parameters=parameters), get_type_hints(declared)
