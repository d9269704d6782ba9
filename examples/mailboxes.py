"""An agent answers questions with a provider that fails. What it cannot answer is kept, told of, and answered later."""

import queue
import threading
from dataclasses import dataclass

from redrive.mailboxes import (
    KEEP,
    ContentPolicyViolation,
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    LoopGroup,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    ProviderError,
    Replayer,
    SQLiteMailbox,
)


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Answer:
    text: str


Request = MainLoopRequest[Question]
Result = MainLoopResult[Answer]

requests: SQLiteMailbox[Request, Result] = SQLiteMailbox("questions", "mailboxes.db")
answers: SQLiteMailbox[Result, None] = SQLiteMailbox("answers", "mailboxes.db", body_type=Result)
dead_letters: SQLiteMailbox[DeadLetter[Request], None] = SQLiteMailbox("questions-dlq", "mailboxes.db")
alerts: queue.SimpleQueue[str] = queue.SimpleQueue()


class Provider:
    """Busy at the first call; knows nothing of the sea until it is mended; does not speak of locks."""

    def __init__(self) -> None:
        self.calls = 0
        self.mended = False

    def evaluate(self, prompt: str) -> Answer:
        self.calls += 1
        if "lock" in prompt:
            raise ContentPolicyViolation("we do not speak of locks")
        if self.calls == 1 or ("sea" in prompt and not self.mended):
            raise ProviderError("overloaded")
        return Answer(f"{prompt} That is a good question.")


class Agent(MainLoop[Question, Answer]):
    def prepare(self, request: Question) -> str:
        return f"Answer briefly: {request.text}"


def alert(letter: DeadLetter[Request]) -> object:
    hopeless = "ContentPolicyViolation" in letter.last_error_type
    alerts.put(f"{letter.body.request.text} ({letter.delivery_count} attempts, {letter.last_error})")
    # To return is to be done with it. What may be answered tomorrow stays a dead letter.
    return None if hopeless else KEEP


def outcome(count: int) -> str:
    """Waits for so many replies."""
    results: list[Result] = []
    while len(results) < count:
        for message in answers.receive(max_messages=10, wait_time_seconds=5):
            results.append(message.body)
            message.acknowledge()
    good = sum(result.success for result in results)
    return f"{good} answered, {count - good} given up"


def main() -> None:
    provider = Provider()
    agent = Agent(
        adapter=provider,
        requests=requests,
        dlq=DLQPolicy(mailbox=dead_letters, max_delivery_count=3, include_errors=frozenset({ContentPolicyViolation})),
        config=MainLoopConfig(backoff_base=0.1),
    )
    group = LoopGroup([agent, DLQConsumer(mailbox=dead_letters, handler=alert)])

    questions = ["why is the sky blue?", "how deep is the sea?", "what swims in the sea?", "how do I pick a lock?"]
    for text in questions:
        requests.send(MainLoopRequest(Question(text)), reply_to=answers)

    night = threading.Thread(target=group.run, kwargs={"install_signals": False})
    night.start()
    print("at night:", outcome(len(questions)))
    for _ in range(3):
        print("  alert:", alerts.get())
    group.shutdown()
    night.join()
    print("dead letters in the morning:", dead_letters.approximate_count())

    provider.mended = True
    found = Replayer(dead_letters).matching("error:ProviderError", reason="the provider is mended")
    agent.run(max_iterations=len(found.replayed))
    print("replayed:", outcome(len(found.replayed)))
    print("left:", requests.approximate_count(), "requests,", dead_letters.approximate_count(), "dead letters")


with requests, answers, dead_letters:
    main()
