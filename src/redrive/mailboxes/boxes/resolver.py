"""From the name of a mailbox back to a mailbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from redrive.core.validation import check_function, check_has, check_optional, check_type
from redrive.errors import MailboxResolutionError

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import Mailbox


class MailboxResolver:
    """First the registry, then the factory, which makes a mailbox for a name, or gives None for one it does not know.

    What the factory made is kept: it is asked once for each name.
    """

    def __init__(
        self,
        registry: Mapping[str, Mailbox[Any, Any]] | None = None,
        factory: Callable[[str], Mailbox[Any, Any] | None] | None = None,
    ) -> None:
        check_optional(registry=(registry, Mapping, "give mailboxes by name"))
        if factory is not None:
            check_function(factory, field="factory", hint="give one that makes a mailbox for a name")
        self._registry = dict(registry or {})
        self._factory = factory

    def register(self, mailbox: Mailbox[Any, Any], name: str | None = None) -> None:
        """Under its own name, if no other is given."""
        check_has(mailbox, "send", field="mailbox", hint="use open_mailbox")
        check_optional(name=(name, str, "give the name of a mailbox"))
        self._registry[mailbox.name if name is None else name] = mailbox

    def resolve(self, name: str) -> Mailbox[Any, Any]:
        """Raises MailboxResolutionError, from what the factory raised if it was that."""
        check_type(name, str, field="name", hint="give the name of a mailbox")
        mailbox = self._registry.get(name)
        if mailbox is not None:
            return mailbox
        try:
            made = None if self._factory is None else self._factory(name)
        except Exception as error:
            raise MailboxResolutionError(name, hint=f"the factory raised {type(error).__name__}: {error}") from error
        if made is None:
            known = ", ".join(sorted(self._registry)) or "none"
            raise MailboxResolutionError(name, hint=f"the registry has: {known}")
        return self._registry.setdefault(name, made)

    def resolve_optional(self, name: str) -> Mailbox[Any, Any] | None:
        """None for an unknown name."""
        try:
            return self.resolve(name)
        except MailboxResolutionError:
            return None
