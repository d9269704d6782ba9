"""The old names of MailboxStore and retry_unknown, for letters and loops until they are merged."""

from redrive.engine.store_retry import retry_unknown as surely
from redrive.mailboxes.boxes.store import MailboxStore as Place

__all__ = ["Place", "surely"]
