"""The load, the same for everybody. Nothing else is imported here: the peers' own Python reads it too."""

from __future__ import annotations

QUEUE = "bench"
PAYLOAD = {"user_id": 123456, "kind": "invoice.created", "body": "x" * 110, "tags": ["a", "b", "c"], "amount": 1299}
"""About 200 bytes of JSON."""
