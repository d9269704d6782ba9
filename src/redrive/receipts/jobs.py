"""A job that a poller was given, and the receipts that tell how it went. Pure but for the time of a receipt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from redrive.core.item import Instant
from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.engine.signals import Retry
from redrive.errors import ConfigError, InvalidReceipt, ReceiptSuperseded, RedriveError
from redrive.receipts._logs import said
from redrive.receipts.model import SUMMARY_LIMIT, Receipt, name_faults

HANDLER_ERROR = "HANDLER_ERROR"
JOB_TIMEOUT = "JOB_TIMEOUT"
SHUTDOWN_CANCELLED = "SHUTDOWN_CANCELLED"
LEASE_LOST = "LEASE_LOST"
_STILL_COUNTS = frozenset({"LEASE_RENEWAL_LIMIT_EXCEEDED", "LEASE_LIFETIME_EXCEEDED"})
"""The lease cannot be made longer, and is ours until it runs out."""
UNSENDABLE = "what the handler returned cannot be sent: "
HINT = "give a mapping with lease_id and task_id"
_RESULT_FIELDS = frozenset({"summary", "artifact_pointers"})


@dataclass(eq=False, slots=True)
class Job:
    """Work that the broker leased to us. `given` is what it said, whole.

    `cancel_requested` tells a handler in a thread, which cannot be cancelled, that nobody waits for it any more, and
    why: JOB_TIMEOUT, SHUTDOWN_CANCELLED or LEASE_LOST.
    """

    lease_id: str
    task_id: str
    payload: Any = None
    given: dict[str, Any] = field(default_factory=dict)
    cancel_requested: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Job:
        """Raises ConfigError if it does not say which lease of which task it is, in words that a receipt can have."""
        raw: object = given
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{shown(raw)} is no job", field="poll", hint=HINT)
        lease_id, task_id = (_id(name, raw.get(name)) for name in ("lease_id", "task_id"))
        return cls(lease_id, task_id, raw.get("payload"), dict(raw))


def _id(name: str, value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError(f"a job has no {name}", field="poll", hint=HINT)
    try:
        text = str(value)
    except ValueError:  # a number of more digits than Python prints
        raise ConfigError(f"{name} is a number of too many digits", field="poll", hint=HINT) from None
    if not text.strip():
        raise ConfigError(f"a job has no {name}", field="poll", hint=HINT)
    for fault in name_faults(name, text):
        raise ConfigError(f"a job whose {fault}", field="poll", hint="no receipt could name it: it is not begun")
    return text


@dataclass(frozen=True, slots=True)
class Clerk:
    """Writes the receipts of one worker."""

    worker_id: str

    def running(self, job: Job, now: Instant) -> Receipt:
        return self._receipt(job, now, status="running", summary="started")

    def failed(self, job: Job, now: Instant, code: str, message: str, *, retryable: bool = False) -> Receipt:
        # Half a character in what others said must not keep the end of a job from being told.
        text = redact_text(message.encode("utf-8", "backslashreplace").decode())
        told = {"code": code, "message": text, "retryable": retryable}
        return self._receipt(job, now, status="failed", summary=_cut(text), error_metadata=told)

    def raised(self, job: Job, now: Instant, error: BaseException) -> Receipt:
        """A handler that raises `Retry` asks the broker to give the task to somebody again."""
        return self.failed(job, now, HANDLER_ERROR, said(error), retryable=isinstance(error, Retry))

    def returned(self, job: Job, now: Instant, value: object) -> Receipt:
        """What the handler returned, as a final receipt. The work is done: what does not fit is kept beside."""
        try:
            if isinstance(value, Receipt):
                return self._own(job, value)
            return self._receipt(job, now, status="complete", **_result(value))
        except (InvalidReceipt, ConfigError) as error:
            return self.failed(job, now, HANDLER_ERROR, f"{UNSENDABLE}{error.message}")
        except Exception as error:  # noqa: BLE001 - it is an object of the user's, and may do anything when it is read
            return self.failed(job, now, HANDLER_ERROR, f"{UNSENDABLE}{said(error)}")

    def _own(self, job: Job, receipt: Receipt) -> Receipt:
        if (receipt.lease_id, receipt.task_id) != (job.lease_id, job.task_id):
            raise ConfigError(f"the receipt is for lease {shown(receipt.lease_id)}, not for {shown(job.lease_id)}")
        if not receipt.final:
            raise ConfigError(f"the receipt is {receipt.status}, and the last one is complete or failed")
        return receipt

    def _receipt(self, job: Job, now: Instant, **fields: Any) -> Receipt:
        return Receipt(
            lease_id=job.lease_id,
            task_id=job.task_id,
            worker_id=self.worker_id,
            timestamp=datetime.fromtimestamp(now / 1000, UTC),
            **fields,
        )


def _cut(summary: str) -> str:
    return summary if len(summary) <= SUMMARY_LIMIT else f"{summary[: SUMMARY_LIMIT - 1]}…"


def _result(value: object) -> dict[str, Any]:
    """A text is the summary; a mapping may have one, and artifact pointers; all else is kept as an artifact."""
    match value:
        case None:
            return {}
        case str():
            return _fitting({"summary": value})
        case Mapping() if value and value.keys() <= _RESULT_FIELDS:
            return _fitting(dict(value))
        case _:
            return {"artifact_pointers": [{"result": _plain(value)}]}


def _fitting(fields: dict[str, Any]) -> dict[str, Any]:
    """A summary that is too long is cut, and whole in an artifact: it is what came of the work."""
    summary, pointers = fields.get("summary"), fields.get("artifact_pointers", [])
    if not isinstance(summary, str) or len(summary) <= SUMMARY_LIMIT or not isinstance(pointers, list | tuple):
        return fields
    return {"summary": _cut(summary), "artifact_pointers": [*pointers, {"summary": summary}]}


def _plain(value: object) -> Any:
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{shown(value)} is no JSON ({error})") from None


def ended(error: BaseException) -> bool:
    """The broker says that the lease or the task is gone, not only that the lease cannot be made longer."""
    code = getattr(error, "code", "")
    if isinstance(error, ReceiptSuperseded):
        return code not in _STILL_COUNTS
    return isinstance(error, RedriveError) and code in {"TASK_NOT_FOUND", "LEASE_INVALID_OR_EXPIRED"}
