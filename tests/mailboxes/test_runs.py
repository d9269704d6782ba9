"""The work of a main loop: prompts, deadlines, budgets, expansions, async adapters, bundles, and its types."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.mailboxes import (
    Budget,
    BudgetExceededError,
    DeadLetter,
    Deadline,
    DeadlineExceededError,
    DLQPolicy,
    Experiment,
    InvalidParameterError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    Run,
    VisibilityExpansionRequired,
    current_run,
)
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask, Bench, Loop, Told
from tests.mailboxes.conftest import Openers

T = TypeVar("T")


@pytest.fixture
def bench(mailboxes: Openers, clock: FakeClock) -> Bench:
    made = Bench(mailboxes("memory"), clock)
    made.adapter.error = None
    return made


def now(clock: FakeClock) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1000, UTC)


def this_run() -> Run:
    run = current_run()
    assert run is not None
    return run


class Acts(Adapter):
    """Does what the test says."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act

    def evaluate(self, prompt: Ask) -> Any:
        self.asked.append(prompt)
        return self._act(prompt)


def loop_that(bench: Bench, act: Any, **options: Any) -> Loop:
    return Loop(adapter=Acts(act), requests=bench.requests, dlq=DLQPolicy(bench.letters), **options)


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_a_request_past_its_deadline_is_not_begun(bench: Bench) -> None:
    bench.send(deadline=Deadline(now(bench.clock) + timedelta(seconds=5)))
    bench.clock.advance("5s")
    bench.run()
    assert bench.adapter.asked == []
    assert bench.counts == (0, 1), "no second try can help"
    [answer] = bench.answers()
    assert answer.error is not None
    assert answer.error.startswith("Dead-lettered after 1 attempts: the deadline was 2026-01-01T00:00:05")
    assert bench.letters.receive()[0].body.last_error_type == "redrive.mailboxes.errors.DeadlineExceededError"


def test_the_deadline_of_the_budget_counts_too(bench: Bench) -> None:
    early, late = (Deadline(now(bench.clock) + timedelta(seconds=each)) for each in (5, 50))
    bench.send(deadline=late, budget=Budget(deadline=early))
    bench.send(deadline=early, budget=Budget(deadline=late))
    bench.clock.advance("6s")
    bench.run(2)
    assert (bench.adapter.asked, bench.counts) == ([], (0, 2))


def test_a_late_output_is_not_sent(bench: Bench) -> None:
    bench.loop = loop_that(bench, lambda _: bench.clock.advance("6s"))
    bench.send(deadline=Deadline(now(bench.clock) + timedelta(seconds=5)))
    bench.run()
    assert [answer.output for answer in bench.answers()] == [None]
    assert bench.counts == (0, 1)


def test_a_deadline_of_the_config_counts_from_the_request(bench: Bench) -> None:
    bench.loop = bench.another(config=MainLoopConfig(deadline="1m"), dlq=DLQPolicy(bench.letters))
    bench.send("old", created_at=now(bench.clock) - timedelta(seconds=61))
    bench.send("new", created_at=now(bench.clock))
    bench.run(2)
    assert bench.adapter.asked == [Ask("new")]


def test_an_async_adapter_is_cancelled_at_the_deadline(bench: Bench) -> None:
    async def never(_: Ask) -> None:
        await asyncio.Event().wait()

    loop = loop_that(bench, never)
    soon = Deadline.after(0.01, since=now(bench.clock))
    with pytest.raises(DeadlineExceededError):
        loop.execute(Ask("why"), deadline=soon)


def test_a_deadline_needs_a_time_zone() -> None:
    with pytest.raises(InvalidParameterError, match="expires_at"):
        Deadline(datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is wrong
    deadline = Deadline(datetime(2026, 1, 1, tzinfo=UTC))
    assert deadline.remaining(now=datetime(2025, 12, 31, 23, 59, tzinfo=UTC)) == timedelta(minutes=1)
    assert deadline.remaining(now=datetime(2026, 1, 2, tzinfo=UTC)) == timedelta(0)


# --- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "what"),
    [
        (Budget(max_total_tokens=29), "max_total_tokens"),
        (Budget(max_input_tokens=9), "max_input_tokens"),
        (Budget(max_output_tokens=19), "max_output_tokens"),
        (Budget(max_total_tokens=30, max_input_tokens=10, max_output_tokens=20), None),
        (None, None),
    ],
)
@pytest.mark.parametrize(
    "usage",
    [
        SimpleNamespace(input_tokens=10, output_tokens=20),
        {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30},
    ],
)
def test_what_the_output_says_it_used_is_held_against_the_budget(
    bench: Bench, budget: Budget | None, what: str | None, usage: object
) -> None:
    loop = loop_that(bench, lambda _: SimpleNamespace(usage=usage))
    if what is None:
        _, session = loop.execute(Ask("why"), budget=budget)
        assert (session.usage.input_tokens, session.usage.output_tokens, session.usage.total_tokens) == (10, 20, 30)
        return
    with pytest.raises(BudgetExceededError) as spent:
        loop.execute(Ask("why"), budget=budget)
    assert spent.value.what == what


def test_an_adapter_that_records_is_stopped_in_the_middle(bench: Bench) -> None:
    steps = []

    def work(_: Ask) -> object:
        for step in range(5):
            steps.append(step)
            this_run().record(input_tokens=10)
        return SimpleNamespace(usage={"input_tokens": 50})

    bench.loop = loop_that(bench, work)
    bench.send(budget=Budget(max_input_tokens=25))
    bench.run()
    assert steps == [0, 1, 2]
    assert bench.counts == (0, 1), "it would cost as much again"
    assert bench.letters.receive()[0].body.last_error == "30 input tokens were used, 25 are allowed"
    _, session = loop_that(bench, work).execute(Ask("why"), budget=Budget(max_input_tokens=50))
    assert session.usage.input_tokens == 50, "what was recorded is not counted twice"


def test_wrong_budgets_and_records_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidParameterError, match="max_total_tokens"):
        Budget(max_total_tokens=-1)
    with pytest.raises(InvalidParameterError, match="usage"):
        loop_that(bench, lambda _: this_run().record(input_tokens=-1)).execute(Ask("why"))


# --- prompts --------------------------------------------------------------------------------------------------------


class Prompting(MainLoop[Ask, str]):
    def prepare(self, request: Ask) -> str:
        run = this_run()
        name = run.experiment.name if run.experiment is not None else "none"
        return f"{request.text} ({name}, {run.resources.get('city', '-')})"

    def expand(self, prompt: str, needed: VisibilityExpansionRequired) -> str:
        return prompt + "".join(needed.section_keys)


class Echo:
    """Takes what it is offered."""

    def __init__(self, expansions: int = 0) -> None:
        self.given: dict[str, Any] = {}
        self.prompts: list[str] = []
        self._expansions = expansions

    def evaluate(self, prompt: str, *, deadline: Deadline | None, resources: Mapping[str, Any]) -> str:
        self.given = {"deadline": deadline, "resources": resources}
        self.prompts.append(prompt)
        if len(self.prompts) <= self._expansions:
            raise VisibilityExpansionRequired(section_keys=["+"])
        return prompt


def test_prepare_makes_the_prompt_and_the_adapter_gets_what_it_takes(bench: Bench) -> None:
    adapter: Any = Echo()
    loop = Prompting(adapter=adapter, requests=bench.requests, resources={"city": "Bern"})
    deadline = Deadline(now(bench.clock) + timedelta(days=1))
    output, session = loop.execute(Ask("why"), deadline=deadline, experiment=Experiment("second"))
    assert output == "why (second, Bern)"
    assert adapter.given == {"deadline": deadline, "resources": {"city": "Bern"}}
    assert session.run_context.session_id == session.session_id
    asked = MainLoopRequest(Ask("why"), resources={"river": "Tiber"})
    assert loop.execute(asked, resources={"city": "Rome"})[0] == "why (none, Rome)"
    loop.execute(asked)
    assert adapter.given["resources"] == {"city": "Bern", "river": "Tiber"}
    assert current_run() is None


class Registry:
    """As the seed's ResourceRegistry: resources by type."""

    def __init__(self, *resources: object) -> None:
        self._by_type = {type(each): each for each in resources}

    def get(self, kind: type) -> object | None:
        return self._by_type.get(kind)


def test_resources_may_be_a_registry(bench: Bench) -> None:
    adapter: Any = Echo()
    registry = Registry(bench)
    loop: MainLoop[Ask, str] = MainLoop(adapter=adapter, requests=bench.requests, resources=registry)
    loop.execute(Ask("why"))
    assert adapter.given["resources"] is registry
    loop.execute(MainLoopRequest(Ask("why"), resources={"city": "Rome"}))
    resources: Any = adapter.given["resources"]
    assert (resources.get("city"), resources.get(Bench), resources.get(int, 7)) == ("Rome", bench, 7)
    with pytest.raises(InvalidParameterError, match=r"resources: must have get\(\), got 3"):
        MainLoop(adapter=adapter, requests=bench.requests, resources=3)  # type: ignore[arg-type]


def test_expansions_are_part_of_the_same_delivery(bench: Bench) -> None:
    adapter: Any = Echo(expansions=10)
    loop = Prompting(adapter=adapter, requests=bench.requests, dlq=DLQPolicy(bench.letters))
    bench.send()
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert len(adapter.prompts) == 11
    assert adapter.prompts[-1] == "why (none, -)" + "+" * 10
    assert bench.counts == (0, 0)


def test_one_expansion_too_many_is_a_failure(bench: Bench) -> None:
    adapter: Any = Echo(expansions=11)
    loop = Prompting(adapter=adapter, requests=bench.requests, dlq=DLQPolicy(bench.letters))
    bench.send()
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert len(adapter.prompts) == 11
    assert bench.counts == (1, 0)
    bench.clock.advance("60s")
    assert bench.requests.receive()[0].delivery_count == 2


def test_async_adapters_keep_one_event_loop_and_know_their_run(bench: Bench) -> None:
    loops, attempts = [], []

    async def evaluate(prompt: Ask) -> Told:
        await asyncio.get_running_loop().run_in_executor(None, str)
        loops.append(asyncio.get_running_loop())
        attempts.append((this_run().context.request_id, threading.current_thread()))
        return Told(prompt.text)

    bench.loop = loop_that(bench, evaluate)
    sent = [bench.send(text).request_id for text in ("one", "two")]
    bench.run(2)
    assert [answer.output for answer in bench.answers()] == [Told("one"), Told("two")]
    assert loops[0] is loops[1]
    assert attempts == [(key, threading.current_thread()) for key in sent]
    assert loop_that(bench, evaluate).execute(Ask("three"))[0] == Told("three")


# --- types ----------------------------------------------------------------------------------------------------------


class Half(MainLoop[T, Told], Generic[T]):
    pass


class Whole(Half[Ask]):
    pass


class Named(MainLoop["Ask", Told]):
    pass


@pytest.mark.parametrize(
    ("kind", "request_type"),
    [
        (Loop, MainLoopRequest[Ask]),
        (Whole, MainLoopRequest[Ask]),
        (Half[Ask], MainLoopRequest[Ask]),
        (Half[list[Ask]], MainLoopRequest[list[Ask]]),
        (Half, MainLoopRequest[Any]),
        (Named, MainLoopRequest[Ask]),
        (MainLoop[Ask, Told], MainLoopRequest[Ask]),
        (MainLoop, MainLoopRequest),
    ],
)
def test_mailboxes_are_typed_by_the_loops_generics(mailboxes: Openers, kind: Any, request_type: Any) -> None:
    opened = mailboxes("memory")
    requests, letters, given = opened("requests"), opened("letters"), opened("given", body_type=dict)
    kind(adapter=Adapter(), requests=requests, dlq=DLQPolicy(letters)).run(max_iterations=1, wait_time_seconds=0)
    assert requests.body_type == request_type
    assert letters.body_type == DeadLetter[request_type]
    kind(adapter=Adapter(), requests=given).run(max_iterations=1, wait_time_seconds=0)
    assert given.body_type is dict, "what the user says stays"


def test_bare_requests_work_where_the_mailbox_says_so(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    requests, replies = opened("requests", body_type=Ask), opened("replies")
    adapter = Adapter()
    requests.send(Ask("why"), reply_to=replies)
    Loop(adapter=adapter, requests=requests).run(max_iterations=1, wait_time_seconds=0)
    assert adapter.asked == [Ask("why")]
    assert replies.receive()[0].body["output"] == {"text": "why!"}


# --- config ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"backoff_base": -1},
        {"backoff_max": 43_201},
        {"jitter": 2},
        {"max_messages": 11},
        {"max_messages": 1.5},
        {"max_expansions": -1},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        MainLoopConfig(**wrong)


def test_jitter_takes_some_of_the_backoff() -> None:
    config = MainLoopConfig(jitter=0.5, lease_extender=LeaseExtenderConfig())
    spread = {config.backoff(2) for _ in range(50)}
    assert all(60 <= delay <= 120 for delay in spread)
    assert len(spread) > 1
    assert MainLoopConfig().backoff(2) == 120


def test_an_adapter_that_cannot_evaluate_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidParameterError, match="adapter"):
        Loop(adapter=object(), requests=bench.requests)  # type: ignore[arg-type]


def test_a_debug_bundle_tells_all_of_a_run(bench: Bench, tmp_path: Path) -> None:
    config = MainLoopConfig(debug_bundles=tmp_path / "bundles")
    bench.loop = bench.another(config=config, dlq=DLQPolicy(bench.letters))
    sent = bench.send(debug_bundle=True)
    bench.send("plain")
    bench.run(2)
    asked, plain = bench.answers()
    assert plain.bundle_path is None
    assert asked.bundle_path is not None
    told = json.loads(Path(asked.bundle_path).read_text())
    assert (told["context"]["request_id"], told["output"]) == (str(sent.request_id), {"text": "why!"})
    bench.adapter.error = ValueError("boom")
    bench.send(debug_bundle=True)
    bench.run()
    errors = [json.loads(path.read_text()).get("error") for path in (tmp_path / "bundles").iterdir()]
    assert sorted(map(str, errors)) == ["None", "ValueError('boom')"]
