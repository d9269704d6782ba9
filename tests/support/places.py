"""Mailboxes that a test, or the example of a page, left open."""

from __future__ import annotations

import sys


def leave_all() -> None:
    """Their loop would outlive the test, and others look whether there is one."""
    module = sys.modules.get("redrive.blocking.shared_store")
    if module is None:
        return
    stores, abandoned = module._stores, module._abandoned  # noqa: SLF001 - no other list of all of them
    abandoned.clear()
    for shared in tuple(stores.values()):
        while not shared.closed:
            shared.leave()
