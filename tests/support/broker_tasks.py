"""What a broker knows about its tasks: who has which, until when, and what became of them.

It refuses as the broker of seed 000 does, by code. A task it was never told of is taken as it comes, unless it is
`strict`: most tests are about receipts and not about who had the lease.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Arguments = dict[str, Any]

LEASE_MS = 120_000
ENDS = {"asyncgate.complete": "succeeded", "asyncgate.fail": "failed"}


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Task:
    id: str
    payload: Any = None
    state: str = "queued"
    lease_id: str = ""
    until: int = 0
    leases: int = 0
    renewals: list[int] = field(default_factory=list)
    """When its lease was prolonged."""
    progress: list[Arguments] = field(default_factory=list)
    end: Arguments | None = None


class Tasks:
    def __init__(self, now: Callable[[], int], *, strict: bool, lease_ms: int) -> None:
        self.known: dict[str, Task] = {}
        self._now = now
        self._strict = strict
        self._lease_ms = lease_ms
        self._numbers = itertools.count(1)

    def add(self, payload: Any = None, id: str | None = None) -> Task:
        task = Task(id or f"task-{len(self.known) + 1}", payload)
        self.known[task.id] = task
        return task

    def expire(self, task_id: str) -> None:
        """Its lease is over, whatever the time is; the task waits for the next one."""
        self.known[task_id].until = 0

    def call(self, tool: str, arguments: Arguments) -> Arguments:
        """What the tool answers. Raises Refusal."""
        match tool:
            case "asyncgate.lease_next":
                return self._lease_next(arguments)
            case "asyncgate.renew_lease":
                return self._renew(arguments)
            case "asyncgate.report_progress":
                return self._progress(arguments)
            case "asyncgate.complete" | "asyncgate.fail":
                return self._end(tool, arguments)
            case _:
                raise Refusal("METHOD_NOT_FOUND", f"there is no tool {tool}")

    def _lease_next(self, arguments: Arguments) -> Arguments:
        most = int(arguments.get("max_tasks", 1))
        given: list[Arguments] = []
        for task in self.known.values():
            self._requeue(task)
            if task.state == "queued" and len(given) < most:
                task.state, task.leases = "leased", task.leases + 1
                task.lease_id = f"lease-{next(self._numbers)}"
                task.until = self._now() + self._lease_ms
                given.append(self._told(task))
        return {"tasks": given}

    def _told(self, task: Task) -> Arguments:
        return {"task_id": task.id, "lease_id": task.lease_id, "payload": task.payload, "expires_at": task.until}

    def _renew(self, arguments: Arguments) -> Arguments:
        task = self._held(arguments)
        if task is None:
            raise Refusal("TASK_NOT_FOUND", f"there is no task {arguments.get('task_id')}")
        task.until = self._now() + self._lease_ms
        task.renewals.append(self._now())
        return {"lease_id": task.lease_id, "expires_at": task.until}

    def _progress(self, arguments: Arguments) -> Arguments:
        task = self._held(arguments)
        if task is not None:
            task.state = "running"
            task.progress.append(arguments)
        return {"ok": True}

    def _end(self, tool: str, arguments: Arguments) -> Arguments:
        task = self._held(arguments)
        if task is not None:
            task.state, task.end = ENDS[tool], arguments
        return {"ok": True}

    def _held(self, arguments: Arguments) -> Task | None:
        """The task that these speak of, if they have its lease."""
        task = self.known.get(str(arguments.get("task_id")))
        if task is None:
            if self._strict:
                raise Refusal("TASK_NOT_FOUND", f"there is no task {arguments.get('task_id')}")
            return None
        if task.state in ENDS.values():
            raise Refusal("INVALID_STATE_TRANSITION", f"task {task.id} is {task.state} already")
        self._requeue(task)
        if task.lease_id != arguments.get("lease_id") or task.state == "queued":
            raise Refusal("LEASE_INVALID_OR_EXPIRED", f"{arguments.get('lease_id')} is not the lease of {task.id}")
        return task

    def _requeue(self, task: Task) -> None:
        if task.state in {"leased", "running"} and task.until <= self._now():
            task.state = "queued"
