"""Names the policy that judges the next failure of a live item, for `explain`."""

from __future__ import annotations

from redrive.core.item import Terms
from redrive.core.policy_data import FIELDS, is_data, read
from redrive.core.quantity import shown
from redrive.errors import ConfigError
from redrive.office import doors
from redrive.office.scene import Scene

HANDLER = "the policy of the handler"


def next_judge(scene: Scene) -> str:
    """The item's own policy, else the queue's, else the handler's. Numbers stand over the policy below them, a name
    replaces it. What a name or a handler's policy says is known only where the app is.
    """
    if doors.receives(scene.door):
        return "its receiver: policies do not apply to what is received"
    item = scene.history.item
    texts = (("item", (item.terms or Terms()).policy), ("queue", scene.queue.settings.policy))
    named: list[str] = []
    last = ""
    for owner, text in texts:
        if text:
            name, whole = _described(text)
            named.append(f"policy {name} of the {owner}")
            if whole:
                last = text
                break
    else:
        named.append(HANDLER)
    judge = ", over ".join(named)
    if scene.policy is not None:
        note = f" ({scene.note})" if scene.note else ""
        return f"{judge}{note}: {scene.policy.describe()}"
    return judge if is_data(last) else f"{judge} (what it says is only in the code of the app)"


def _described(text: str) -> tuple[str, bool]:
    """For people, and whether it leaves nothing to the policy below it."""
    if not is_data(text):
        return text, True
    try:
        data = read(text)
    except ConfigError:  # from another release, say; a worker that cannot read it passes it over as well
        return f"{shown(text)} (not a policy here)", False
    return data.describe() or text, all(name in data.given for name in FIELDS)
