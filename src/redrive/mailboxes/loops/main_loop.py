"""The loop for agents: a request comes, a prompt is made of it, an adapter evaluates it, and the output is the reply.

    class Answers(MainLoop[Question, Answer]):
        def prepare(self, request: Question) -> str:
            return f"Answer briefly: {request.text}"

    loop = Answers(adapter=adapter, requests=requests, dlq=DLQPolicy(mailbox=dead_letters))
    loop.run()

A request that fails is retried with a backoff; one that is given up is a dead letter, and its sender gets an error
reply. Each end is one write, so that a crash can neither lose a request nor answer it twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

import msgspec

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.core.generics import arguments_of, given_for, parameters_of
from redrive.core.instants import moment
from redrive.core.validation import check_has, check_optional
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import request_id_of
from redrive.mailboxes.boxes.envelope import plain_body
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.errors import VisibilityExpansionRequired
from redrive.mailboxes.loops.config import MainLoopConfig
from redrive.mailboxes.loops.policy import DLQPolicy
from redrive.mailboxes.loops.requests import (
    BUDGET,
    DEADLINE,
    EXPERIMENT,
    RESOURCES,
    Budget,
    Deadline,
    Experiment,
    MainLoopRequest,
    MainLoopResult,
    RunContext,
    check_resources,
)
from redrive.mailboxes.loops.runs import ResourceRegistry, Run, Session, ended, merged_resources, under_way, usage_of
from redrive.mailboxes.loops.worker import MailboxWorker
from redrive.mailboxes.metrics import MailboxMetrics

UserRequestT = TypeVar("UserRequestT")
OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)

OFFERED = ("deadline", "budget", "resources")
"""What an adapter gets if it has a parameter of the name."""


class ProviderAdapter(Protocol[OutputT_co]):
    """Whatever evaluates a prompt. It may also be a coroutine function, and may take deadline, budget and resources."""

    def evaluate(self, prompt: Any, /) -> OutputT_co | Awaitable[OutputT_co]: ...


class MainLoop(MailboxWorker[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]], Generic[UserRequestT, OutputT]):
    """Usable as it is, for requests that are prompts; subclass it for all others.

    Without a dead-letter policy the first failure is the last: the sender gets an error reply, and the request is a
    letter of no mailbox, which `redrive letters` shows.
    """

    _what = "main loop"

    def __init__(
        self,
        *,
        adapter: ProviderAdapter[OutputT],
        requests: Mailbox[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]],
        resources: ResourceRegistry | None = None,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]] | None = None,
        metrics: MailboxMetrics | None = None,
    ) -> None:
        check_has(adapter, "evaluate", field="adapter", hint="give an object with evaluate(prompt)")
        check_resources(resources)
        super().__init__(requests=requests, config=config, dlq=dlq, metrics=metrics)
        self._adapter = adapter
        self._resources = resources
        parameters = parameters_of(adapter.evaluate)
        self._takes = [name for name in OFFERED if name in parameters]

    def prepare(self, request: UserRequestT) -> Any:
        """What the adapter gets. Override it to make a prompt; `current_run()` knows all else of the request."""
        return request

    def expand(self, prompt: Any, needed: VisibilityExpansionRequired) -> Any:
        """The prompt with what the adapter asked for. Override it; it may also change what `prompt` refers to."""
        del needed
        return prompt

    def execute(
        self,
        request: UserRequestT | MainLoopRequest[UserRequestT],
        *,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        resources: Mapping[str, Any] | None = None,
        experiment: Experiment | None = None,
    ) -> tuple[OutputT, Session]:
        """Work on one request here and now, without a mailbox. Raises what the work raises."""
        check_optional(
            budget=(budget, Budget, BUDGET),
            deadline=(deadline, Deadline, DEADLINE),
            resources=(resources, Mapping, RESOURCES),
            experiment=(experiment, Experiment, EXPERIMENT),
        )
        asked: MainLoopRequest[Any] = request if isinstance(request, MainLoopRequest) else MainLoopRequest(request)
        asked = replace(
            asked,
            budget=budget or asked.budget,
            deadline=deadline or asked.deadline,
            resources=asked.resources if resources is None else dict(resources),
            experiment=experiment or asked.experiment,
        )
        return self.run_request(asked, self._heartbeat)

    def run_request(
        self, request: MainLoopRequest[UserRequestT], heartbeat: Heartbeat, attempt: int = 1
    ) -> tuple[OutputT, Session]:
        run = self._run_of(request, heartbeat, attempt)
        with under_way(run):
            output = self._evaluate(request, run)
        return output, run.session()

    # --- what the worker asks for -----------------------------------------------------------------------------------

    def _body_type(self) -> Any:
        arguments = arguments_of(self, MainLoop)
        return given_for(MainLoopRequest, arguments[0]) if arguments else MainLoopRequest

    def _reply_type(self) -> Any:
        arguments = arguments_of(self, MainLoop)
        return given_for(MainLoopResult, arguments[1]) if arguments else MainLoopResult

    def _work(
        self, message: Message[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]]
    ) -> MainLoopResult[OutputT]:
        request = _enveloped(message)
        run = self._run_of(request, self._heartbeat, message.delivery_count)
        folder = self._config.debug_bundles if request.debug_bundle else None
        with under_way(run):
            try:
                output = self._evaluate(request, run)
            except Exception as error:
                _bundle(folder, run, request=request, error=repr(error))
                raise
        return MainLoopResult(
            request_id=request.request_id,
            output=output,
            session_id=run.context.session_id,
            run_context=run.context,
            completed_at=run.now,
            bundle_path=_bundle(folder, run, request=request, output=output),
        )

    def _gave_up(self, body: MainLoopRequest[UserRequestT] | None, raw: bytes, text: str) -> MainLoopResult[OutputT]:
        known = request_id_of(plain_body(raw) if body is None else body)
        context = None if body is None else getattr(body, "run_context", None)
        now = moment(self._clock.now())
        return MainLoopResult(known or UUID(int=0), error=text, run_context=context, completed_at=now)

    # --- the work ---------------------------------------------------------------------------------------------------

    def _run_of(self, request: MainLoopRequest[UserRequestT], heartbeat: Heartbeat, attempt: int) -> Run:
        given, config = request.run_context or RunContext(), self._config
        context = replace(
            given,
            run_id=uuid4(),
            request_id=request.request_id,
            session_id=given.session_id or uuid4(),
            attempt=attempt,
            worker_id=given.worker_id or self._worker_id,
        )
        return Run(
            context,
            clock=self._clock,
            heartbeat=heartbeat,
            budget=request.budget or config.budget,
            deadline=request.deadline or config.deadline_of(request.created_at),
            resources=merged_resources(config.resources, self._resources, request.resources),
            experiment=request.experiment,
        )

    def _evaluate(self, request: MainLoopRequest[UserRequestT], run: Run) -> OutputT:
        run.check()
        prompt = ended(self.prepare(request.request), run)
        before = run.usage
        output: Any = None
        while True:
            given = {name: getattr(run, name) for name in self._takes}
            try:
                output = ended(self._adapter.evaluate(prompt, **given), run)
            except VisibilityExpansionRequired as needed:
                if run.expansions >= self._config.max_expansions:
                    raise
                run.expansions += 1
                run.beat()
                run.check()
                prompt = ended(self.expand(prompt, needed), run)
            else:
                break
        usage = usage_of(output)
        # Not if the adapter recorded its usage itself.
        if usage is not None and run.usage == before:
            run.record(**usage)
        run.check()
        return cast("OutputT", output)


def _enveloped(message: Message[Any, Any]) -> MainLoopRequest[Any]:
    """A mailbox that was opened for bare requests gives those: then the message's id stands for the request's."""
    body = message.body
    if isinstance(body, MainLoopRequest):
        return body
    return MainLoopRequest(body, request_id=uuid5(NAMESPACE_OID, message.id), created_at=message.enqueued_at)


def _bundle(folder: str | os.PathLike[str] | None, run: Run, **parts: object) -> str | None:
    """Write a debug bundle, a JSON file with all facts of the run; its path. None if there is no folder for it, or it
    could not be written: the result counts all the same.
    """
    if folder is None:
        return None
    facts = {"context": run.context, "usage": run.usage, "expansions": run.expansions, "ended_at": run.now, **parts}
    path = Path(folder) / f"{run.context.request_id}-{run.context.run_id}.json"
    half = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(msgspec.json.format(msgspec.json.encode(facts, enc_hook=repr), indent=2))
        half.replace(path)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        logs.log(logging.WARNING, "Debug bundle not written", path=path, error=error)
        return None
    return str(path)
