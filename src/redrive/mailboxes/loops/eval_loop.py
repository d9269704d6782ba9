"""The loop for evaluations: each sample is given to a main loop, and what comes out is judged.

loop = EvalLoop(loop=main_loop, evaluator=exactly, requests=eval_requests, dlq=DLQPolicy(mailbox=eval_dlq))
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from redrive.core.generics import arguments_of, given_for
from redrive.core.instants import moment
from redrive.core.quantity import shown
from redrive.core.validation import check_function, check_type
from redrive.mailboxes.boxes.dead_letter import field_of, request_id_of
from redrive.mailboxes.boxes.envelope import plain_body
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.loops.config import MainLoopConfig
from redrive.mailboxes.loops.evals import EvalRequest, EvalResult, Evaluator, Score, SessionEvaluator, judging
from redrive.mailboxes.loops.main_loop import MainLoop
from redrive.mailboxes.loops.policy import DLQPolicy
from redrive.mailboxes.loops.requests import MainLoopRequest
from redrive.mailboxes.loops.runs import ended
from redrive.mailboxes.loops.worker import MailboxWorker
from redrive.mailboxes.metrics import MailboxMetrics

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ExpectedT = TypeVar("ExpectedT")


class EvalLoop(MailboxWorker[EvalRequest[InputT, ExpectedT], EvalResult], Generic[InputT, OutputT, ExpectedT]):
    """Results go to the sender of the sample. One that cannot be judged is tried again like any request; given up, it
    scores 0 and has not passed.

    The main loop is only asked to `execute`: it need not run, and its own mailbox is not touched.
    """

    _what = "evaluation loop"

    def __init__(
        self,
        *,
        loop: MainLoop[InputT, OutputT],
        evaluator: Evaluator[OutputT, ExpectedT] | SessionEvaluator[OutputT, ExpectedT],
        requests: Mailbox[EvalRequest[InputT, ExpectedT], EvalResult],
        dlq: DLQPolicy[EvalRequest[InputT, ExpectedT], EvalResult] | None = None,
        config: MainLoopConfig | None = None,
        metrics: MailboxMetrics | None = None,
    ) -> None:
        hint = "give a function of (output, expected), or of (output, expected, session)"
        check_function(evaluator, field="evaluator", hint=hint)
        check_type(loop, MainLoop, field="loop", hint="give the MainLoop that is judged")
        self._loop = loop
        super().__init__(requests=requests, config=config, dlq=dlq, metrics=metrics)
        self._judge = judging(evaluator)

    def _body_type(self) -> Any:
        """From its own arguments; the input also from those of the main loop."""
        own, inner = arguments_of(self, EvalLoop), arguments_of(self._loop, MainLoop)
        if own:
            return given_for(EvalRequest, own[0], own[2])
        return given_for(EvalRequest, inner[0], Any) if inner else EvalRequest

    def _reply_type(self) -> Any:
        return EvalResult

    def _work(self, message: Message[EvalRequest[InputT, ExpectedT], EvalResult]) -> EvalResult:
        asked = message.body
        sample = asked.sample
        request = MainLoopRequest(
            sample.input,
            request_id=asked.request_id,
            created_at=asked.created_at,
            run_context=asked.run_context,
            experiment=asked.experiment,
        )
        began = self._clock.monotonic()
        output, session = self._loop.run_request(request, self._heartbeat, message.delivery_count)
        latency = self._clock.monotonic() - began
        score = ended(self._judge(output, sample.expected, session))
        if not isinstance(score, Score):
            raise TypeError(f"the evaluator gave {shown(score)}, and not a Score")
        return EvalResult(
            sample.id,
            asked.experiment.name,
            score,
            latency,
            request_id=asked.request_id,
            completed_at=moment(self._clock.now()),
        )

    def _gave_up(self, body: EvalRequest[InputT, ExpectedT] | None, raw: bytes, text: str) -> EvalResult:
        known: object = plain_body(raw) if body is None else body
        return EvalResult(
            str(field_of(field_of(known, "sample"), "id") or ""),
            str(field_of(field_of(known, "experiment"), "name") or ""),
            Score(0.0, passed=False, reason=text),
            error=text,
            request_id=request_id_of(known),
            completed_at=moment(self._clock.now()),
        )
