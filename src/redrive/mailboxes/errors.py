"""Errors of an agent's work, which adapters raise and policies name.

The three sets group them by whether a retry helps. They are only used where a DLQPolicy is given them, or parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.errors import MailboxConnectionError, RedriveError, SerializationError


class AdapterError(RedriveError):
    """Base of the errors of an agent's work. Policies match subclasses, too, so an own one may derive from any."""


class RateLimitError(AdapterError):
    """`retry_after`: the seconds that the provider asks to wait, if it does; the loop uses them as its backoff."""

    def __init__(self, message: str = "rate limited", *, retry_after: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class ValidationError(AdapterError):
    """The request cannot be processed as it is."""


class ContentPolicyViolation(AdapterError):
    """The provider refuses this content."""


class AuthenticationError(AdapterError):
    """The credentials are wrong."""


class QuotaExceededError(AdapterError):
    """The account has used up its quota."""


class ProviderError(AdapterError):
    """The provider failed; a retry may help."""


class ResourceNotFoundError(AdapterError):
    """Something that the request needs does not exist, perhaps not yet."""


class VisibilityExpansionRequired(AdapterError):
    """No failure: the prompt is made again with more in it, see MainLoop.expand.

    `requested_overrides`: what to show, by section; `section_keys`: which sections, if that is all.
    """

    def __init__(
        self,
        message: str = "more of the prompt is wanted",
        *,
        requested_overrides: Mapping[Any, Any] | None = None,
        section_keys: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.requested_overrides = dict(requested_overrides or {})
        self.section_keys = tuple(section_keys)
        self.reason = reason


class DeadlineExceededError(AdapterError, TimeoutError):
    """Its deadline has passed; no retry can change that."""


class BudgetExceededError(AdapterError):
    """`what` names the limit, `used` and `limit` are tokens."""

    def __init__(self, message: str, *, what: str = "", used: int = 0, limit: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.what = what
        self.used = used
        self.limit = limit


RETRIABLE_ERRORS: frozenset[type[Exception]] = frozenset(
    {MailboxConnectionError, RateLimitError, TimeoutError, VisibilityExpansionRequired}
)
"""Better next time: for `exclude_errors`, where they should never become letters before the policy's max_age."""

NON_RETRIABLE_ERRORS: frozenset[type[Exception]] = frozenset(
    {ValidationError, ContentPolicyViolation, AuthenticationError, QuotaExceededError}
)
"""The same next time: for `include_errors`, where the first of them should be a letter."""

AMBIGUOUS_ERRORS: frozenset[type[Exception]] = frozenset({ProviderError, SerializationError, ResourceNotFoundError})
"""It depends: in neither set they are tried max_delivery_count times, which suits most."""
