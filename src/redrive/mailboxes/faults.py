"""What goes wrong in an agent's work, as types that adapters raise and policies name.

AdapterError
├── RateLimitError                the provider asks for patience; carries how long, if it said so
├── ValidationError               the request cannot be worked on as it is
├── ContentPolicyViolation        the provider will not take this content
├── AuthenticationError           the credentials are wrong
├── QuotaExceededError            the account has nothing left
├── ProviderError                 the provider failed; it may be better tomorrow, or never
├── ResourceNotFoundError         something the request needs is not there, perhaps not yet
├── VisibilityExpansionRequired   no failure: the prompt is to be made again with more in it, see MainLoop.expand
├── DeadlineExceededError         its time is over; no try can change that (also a TimeoutError)
└── BudgetExceededError           it would use, or used, more tokens than it may; carries both numbers

The three sets say which of them are worth trying again. They bind nobody: give them, or parts of them, to a DLQPolicy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.errors import MailboxConnectionError, RedriveError, SerializationError


class AdapterError(RedriveError):
    """Base of the errors of an agent's work. Policies match subclasses, too, so an own one may derive from any."""


class RateLimitError(AdapterError):
    """`retry_after`: so many seconds the provider asks to wait, None if it did not say. The loop's backoff heeds it."""

    def __init__(self, message: str = "rate limited", *, retry_after: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class ValidationError(AdapterError):
    pass


class ContentPolicyViolation(AdapterError):
    pass


class AuthenticationError(AdapterError):
    pass


class QuotaExceededError(AdapterError):
    pass


class ProviderError(AdapterError):
    pass


class ResourceNotFoundError(AdapterError):
    pass


class VisibilityExpansionRequired(AdapterError):
    """`requested_overrides`: what is to be shown, by section; `section_keys`: which sections, if that is all."""

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
    pass


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
