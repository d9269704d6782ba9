"""Jobs that a broker leases to a poller, the broker's answers that contain them, and the receipts of a job."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from redrive.core.instants import moment
from redrive.core.quantity import cut, shown
from redrive.core.redact import redact_text
from redrive.engine.poller import error_text
from redrive.engine.signals import Retry
from redrive.errors import ConfigError, InvalidReceipt, ReceiptSuperseded, RedriveError
from redrive.observe.logs import log
from redrive.receipts.model import SUMMARY_LIMIT, Receipt, name_faults
from redrive.stores.clock import Clock

HANDLER_ERROR = "HANDLER_ERROR"
UNSENDABLE = "what the handler returned cannot be sent: "
_STILL_VALID = frozenset({"LEASE_RENEWAL_LIMIT_EXCEEDED", "LEASE_LIFETIME_EXCEEDED"})
"""The lease cannot be extended, and is valid until it ends."""
_HINT = "give a mapping with lease_id and task_id"
_SHAPE = '{"tasks": [{"lease_id": …, "task_id": …, "payload": …}, …]}'
_MOST_KEYS = 6
_MOST_SHAPES = 20

logger = logging.getLogger("redrive.receipts")


@dataclass(eq=False, slots=True)
class Job:
    """Work that the broker leased to us. `given` is the broker's whole mapping.

    `cancel_requested` tells a handler in a thread, which cannot be cancelled, that its result is not waited for, and
    why: JOB_TIMEOUT, SHUTDOWN_CANCELLED or LEASE_LOST.
    """

    lease_id: str
    task_id: str
    payload: Any = None
    given: dict[str, Any] = field(default_factory=dict)
    cancel_requested: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Job:
        """Raises ConfigError for a job that no receipt could name."""
        raw: object = given
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{shown(raw)} is not a mapping", field="poll", hint=_HINT)
        lease_id, task_id = (_id(name, raw.get(name)) for name in ("lease_id", "task_id"))
        return cls(lease_id, task_id, raw.get("payload"), dict(raw))


def _id(name: str, value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError(f"a job has no {name}", field="poll", hint=_HINT)
    try:
        text = str(value)
    except ValueError:  # a number of more digits than Python prints
        raise ConfigError(f"{name} is a number of too many digits", field="poll", hint=_HINT) from None
    for fault in name_faults(name, text):
        raise ConfigError(f"a job whose {fault}", field="poll", hint="no receipt could name it: it is not begun")
    return text


def is_lease_lost(error: BaseException) -> bool:
    """Whether the broker says that the lease or the task is gone, not only that the lease cannot be extended."""
    code = getattr(error, "code", "")
    if isinstance(error, ReceiptSuperseded):
        return code not in _STILL_VALID
    return isinstance(error, RedriveError) and code in {"TASK_NOT_FOUND", "LEASE_INVALID_OR_EXPIRED"}


# --- the broker's answers ---------------------------------------------------------------------------------------------


def jobs_in(answer: Any) -> list[Any] | None:
    """The jobs in `{"tasks": […]}`, in a list, in `{"task": {…}}`, or a job alone; None for any other shape."""
    match answer:
        case None | {"tasks": None} | {"task": None}:
            return []
        case {"tasks": list() as jobs}:
            return jobs
        case {"task": Mapping() as job}:
            return [job]
        case Mapping():
            # With one of the two names it may be a job, and is reported as a bad one if it is not.
            return [answer] if {"lease_id", "task_id"} & answer.keys() else None if answer else []
        case str() | bytes():
            return None
        case Iterable():
            return list(answer)
        case _:
            return None


class Reader:
    """Reads jobs from answers. Logs each unknown shape once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def jobs(self, answer: Any) -> list[Job]:
        given = jobs_in(answer)
        if given is None:
            shape = _shape(answer)
            if shape not in self._logged and len(self._logged) < _MOST_SHAPES:
                self._logged.add(shape)
                text = f"asked for work, the broker gave {shape}, not {_SHAPE}: taken for no work"
                log(logger, logging.WARNING, text)
        found = []
        for each in given or ():
            try:
                found.append(Job.of(each))
            except ConfigError as error:
                log(logger, logging.ERROR, f"the broker gave no job: {error}")
        return found


def _shape(answer: Any) -> str:
    """Names, never values, which may be secret."""
    if not isinstance(answer, Mapping):
        return f"a {type(answer).__name__}"
    names = sorted(str(name)[:40] for name in answer)
    more = ", …" if len(names) > _MOST_KEYS else ""
    return f"a mapping with {', '.join(names[:_MOST_KEYS])}{more}"


def late(answer: Any) -> None:
    """For an answer that came after the poller had stopped."""
    if jobs := jobs_in(answer):
        leases = ", ".join(str(job.get("lease_id")) if isinstance(job, Mapping) else "?" for job in jobs)
        log(logger, logging.WARNING, f"jobs that came after the stop are not begun, their leases run out: {leases}")


# --- receipts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceiptFactory:
    """Makes the receipts of one worker."""

    worker_id: str
    clock: Clock

    def running(self, job: Job) -> Receipt:
        return self._receipt(job, status="running", summary="started")

    def failed(self, job: Job, code: str, message: str, *, retryable: bool = False) -> Receipt:
        # An unpaired surrogate in an error must not keep the receipt from being sent.
        text = redact_text(message.encode("utf-8", "backslashreplace").decode())
        metadata = {"code": code, "message": text, "retryable": retryable}
        return self._receipt(job, status="failed", summary=cut(text, SUMMARY_LIMIT), error_metadata=metadata)

    def raised(self, job: Job, error: BaseException) -> Receipt:
        """`Retry` asks the broker to lease the task again."""
        return self.failed(job, HANDLER_ERROR, error_text(error), retryable=isinstance(error, Retry))

    def returned(self, job: Job, value: object) -> Receipt:
        """The final receipt for what the handler returned."""
        try:
            if not isinstance(value, Receipt):
                return self._receipt(job, status="complete", **_result(value))
            if (value.lease_id, value.task_id) != (job.lease_id, job.task_id):
                raise ConfigError(f"the receipt is for lease {shown(value.lease_id)}, not for {shown(job.lease_id)}")
            if not value.final:
                raise ConfigError(f"the receipt is {value.status}, and the last one is complete or failed")
        except (InvalidReceipt, ConfigError) as error:
            return self.failed(job, HANDLER_ERROR, f"{UNSENDABLE}{error.message}")
        except Exception as error:  # noqa: BLE001 - an object of the user may raise anything when it is read
            return self.failed(job, HANDLER_ERROR, f"{UNSENDABLE}{error_text(error)}")
        return value

    def _receipt(self, job: Job, **fields: Any) -> Receipt:
        at = moment(self.clock.now())
        return Receipt(lease_id=job.lease_id, task_id=job.task_id, worker_id=self.worker_id, timestamp=at, **fields)


def _result(value: object) -> dict[str, Any]:
    """A string is the summary; a mapping may have a summary and artifact pointers; all else becomes an artifact.

    A summary that is too long is cut, and whole in an artifact.
    """
    fields: dict[str, Any] = {}
    if isinstance(value, str):
        fields = {"summary": value}
    elif isinstance(value, Mapping) and value and value.keys() <= {"summary", "artifact_pointers"}:
        fields = dict(value)
    elif value is not None:
        try:
            return {"artifact_pointers": [{"result": msgspec.to_builtins(value, str_keys=True)}]}
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{shown(value)} is not JSON ({error})") from None
    summary, pointers = fields.get("summary"), fields.get("artifact_pointers", [])
    if isinstance(summary, str) and len(summary) > SUMMARY_LIMIT and isinstance(pointers, list | tuple):
        return {"summary": cut(summary, SUMMARY_LIMIT), "artifact_pointers": [*pointers, {"summary": summary}]}
    return fields
