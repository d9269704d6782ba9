"""The claims about verbs cover every verb of a store."""

import inspect

from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from tests.support.links.claims import Round


def test_every_verb_is_asked() -> None:
    verbs = {name for name, member in vars(Store).items() if inspect.iscoroutinefunction(member)}
    # The first two are not verbs; a backup is made where the data is, and servers have their own.
    asked = {verb.partition("-")[0] for verb in Round("r", MemoryStore()).calls(MemoryStore())}
    assert asked == verbs - {"open", "close", "backup"}
