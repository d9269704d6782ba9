"""Every way in which a target says no, and what becomes of the receipt."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.errors import (
    ReceiptError,
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
)
from redrive.net.http import HttpAnswer as Answer
from redrive.receipts.answers import CODES, judge, judge_tool, tool_result

KEY = "the-key"


def reply(**said: Any) -> Answer:
    body = json.dumps({"jsonrpc": "2.0", "id": KEY, **said}).encode()
    return Answer(200, {"Content-Type": "application/json"}, body, KEY)


def content(text: object, **more: Any) -> Answer:
    said = text if isinstance(text, str) else json.dumps(text, indent=2)
    return reply(result={"content": [{"type": "text", "text": said}], **more})


def shapes(code: str) -> list[Answer]:
    told = {"error": "it cannot be", "code": code}
    return [
        reply(error={"code": -32000, "message": "no", "data": {"code": code}}),
        reply(error={"code": code, "message": "no"}),
        reply(error={"code": -32000, "message": f"{code}: no"}),
        content(told, isError=True),
        content({"error": {"code": code, "message": "no"}}, isError=True),
        content(f"Error: {code} (no)", isError=True),
        content(told),
        content({"error": {"code": code, "message": "no"}}),
        content(f"Error executing tool: {code}"),
        content("fine", structuredContent=told),
        Answer(409, {}, json.dumps({"detail": told}).encode(), KEY),
    ]


@pytest.mark.parametrize("code", [code for code in CODES if code.isupper()])
def test_a_code_is_found_in_every_shape(code: str) -> None:
    for answer in shapes(code):
        error = judge_tool(answer)
        assert type(error) is CODES[code], answer
        assert error is not None
        assert error.code == code


@pytest.mark.parametrize("code", ["ERROR", "SOMETHING_NEW"])
def test_a_code_that_nobody_knows_is_tried_again(code: str) -> None:
    assert {type(judge_tool(answer)) for answer in shapes(code)[:-1]} == {ReceiptServerError}


@pytest.mark.parametrize(
    ("code", "kind"), [(-32600, ReceiptRefused), (-32601, ReceiptRefused), (-32602, ReceiptRefused)]
)
def test_a_bad_request_is_refused(code: int, kind: type[ReceiptError]) -> None:
    assert type(judge_tool(reply(error={"code": code, "message": "bad"}))) is kind


@pytest.mark.parametrize("code", [-32603, -32700, -32000, 17])
def test_other_numbers_are_the_targets_own_trouble(code: int) -> None:
    assert type(judge_tool(reply(error={"code": code, "message": "bad"}))) is ReceiptServerError


@pytest.mark.parametrize(
    "answer",
    [
        content({"ok": True}),
        content("Task task-1 completed; an earlier call met RATE_LIMIT_EXCEEDED"),
        content({"task_id": "t", "status": "failed", "error": {"code": "UNAUTHORIZED", "message": "of the job"}}),
        content({"task_id": "t", "error": None}),
        reply(result={}),
        reply(result=None),
        content([1, 2]),
        content({"error": ""}, structuredContent={"ok": True}),
        content({"task": {"task_id": "t", "status": "failed", "error": "of the job"}, "error": "of the job"}),
        content({"task_id": "t", "status": "completed", "accepted": True}),
        content("Error budget remaining: 5"),
        Answer(200, {}, json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode(), KEY),
    ],
)
def test_what_is_delivered(answer: Answer) -> None:
    assert judge_tool(answer) is None


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": "no such lease"},
        {"success": False},
        {"ok": False},
        {"error_code": "STALE"},
        {"status": "error"},
        {"accepted": False},
        {"status": "failed", "success": False},
        {"status": "failed", "accepted": False},
        {"task": {"status": "running"}, "error": "no such lease"},
    ],
)
@pytest.mark.parametrize("task", [{}, {"task_id": "t"}, {"lease_id": "l"}, {"task": {"task_id": "t"}}])
def test_a_refusal_beside_the_task_is_not_delivered(refusal: dict[str, Any], task: dict[str, Any]) -> None:
    """Only the echo of a task that has itself failed may carry an error."""
    told = {**task, **refusal}
    for error in (judge_tool(content(told)), judge(Answer(200, {}, json.dumps(told).encode()))):
        assert type(error) is ReceiptServerError


def test_a_reply_with_another_id_answers_only_if_it_is_the_only_one() -> None:
    def answer(*ids: object) -> Answer:
        replies = [{"jsonrpc": "2.0", "id": each, "result": {"ok": each == KEY}} for each in ids]
        return Answer(200, {}, json.dumps(replies).encode(), KEY)

    assert judge_tool(answer(1)) is None
    assert tool_result(answer(1, KEY)) == {"ok": True}
    assert type(judge_tool(answer(1, 2))) is ReceiptServerError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, ReceiptRefused),
        (400, ReceiptRefused),
        (401, ReceiptRefused),
        (404, ReceiptRefused),
        (408, ReceiptServerError),
        (410, ReceiptSuperseded),
        (422, ReceiptRefused),
        (425, ReceiptServerError),
        (429, ReceiptLimited),
        (500, ReceiptServerError),
        (503, ReceiptServerError),
        (599, ReceiptServerError),
    ],
)
def test_a_status_without_a_code(status: int, kind: type[ReceiptError]) -> None:
    for look in (judge, judge_tool):
        error = look(Answer(status, {}, b"<html>no</html>", KEY))
        assert type(error) is kind
        assert error is not None
        assert error.code == str(status)


def test_a_code_wins_over_the_status() -> None:
    body = json.dumps({"code": "LEASE_INVALID_OR_EXPIRED"}).encode()
    assert type(judge(Answer(400, {}, body))) is ReceiptSuperseded
    assert type(judge(Answer(500, {}, json.dumps({"error": {"code": "UNAUTHORIZED"}}).encode()))) is ReceiptRefused


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (reply(error={"code": -32000, "message": "no", "data": {"code": "RATE_LIMIT_EXCEEDED", "retry_after": 7}}), 7),
        (content({"error": "no", "code": "RATE_LIMIT_EXCEEDED", "details": {"retry_after": "7.5"}}), 7.5),
        (content({"error": "RATE_LIMIT_EXCEEDED: retry after 12 seconds", "code": "RATE_LIMIT_EXCEEDED"}), 12),
        (content({"error": "no", "code": "RATE_LIMIT_EXCEEDED"}), None),
        (content({"error": "no", "code": "RATE_LIMIT_EXCEEDED", "retry_after": -1}), None),
        (content({"error": "no", "code": "RATE_LIMIT_EXCEEDED", "retry_after": 10**9}), 86_400),
        (Answer(429, {"Retry-After": "9"}, b""), 9),
        (Answer(503, {"Retry-After": "9"}, b""), 9),
        (Answer(429, {"Retry-After": "soon"}, b""), None),
        (Answer(429, {"Retry-After": "nan"}, b""), None),
    ],
)
def test_how_long_the_target_asks_to_wait(answer: Answer, seconds: float | None) -> None:
    error = judge_tool(answer)
    assert error is not None
    assert error.retry_after == seconds


def test_it_may_ask_by_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    error = judge(Answer(429, {"Retry-After": date}, b""))
    assert error is not None
    assert error.retry_after is not None
    assert 3_000 < error.retry_after <= 3_600
    past = judge(Answer(429, {"Retry-After": "Mon, 01 Jan 2024 00:00:00 GMT"}, b""))
    assert past is not None
    assert past.retry_after is None


@pytest.mark.parametrize("body", [b"", b"ok", b'{"jsonrpc": "2.0", "id"', b"[]", b"5", b'{"id": "the-key"}'])
def test_an_answer_that_cannot_be_read_is_tried_again(body: bytes) -> None:
    assert type(judge_tool(Answer(200, {}, body, KEY))) is ReceiptServerError


@pytest.mark.parametrize(("body", "said"), [(b"", "it is empty"), (b" \n" * 1000, "it is blank")])
def test_an_answer_that_says_nothing_is_told_as_it_is(body: bytes, said: str) -> None:
    error = judge_tool(Answer(200, {}, body, KEY))
    assert error is not None
    assert error.message.endswith(said)


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 404])
def test_whoever_answers_elsewhere_is_told_to_check_the_endpoint(status: int) -> None:
    error = judge(Answer(status, {"Location": "https://b/login"}, b""))
    assert error is not None
    assert error.hint.startswith("check the endpoint")


def test_an_answer_to_another_call_is_none() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": "another", "result": {}}).encode()
    assert type(judge_tool(Answer(200, {}, body, KEY))) is ReceiptServerError


def test_an_error_without_an_id_is_ours() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}).encode()
    assert type(judge_tool(Answer(200, {}, body, KEY))) is ReceiptRefused


def test_a_stream_is_searched_for_our_answer() -> None:
    other = b'event: message\r\ndata: {"jsonrpc": "2.0", "method": "notifications/message"}\r\n\r\n: still here\r\n\r\n'
    ours = b'data: {"jsonrpc": "2.0",\r\ndata: "id": "the-key", "result": {}}\r\n\r\n'
    stream = {"Content-Type": "text/event-stream; charset=utf-8"}
    assert judge_tool(Answer(200, stream, other + ours, KEY)) is None
    assert type(judge_tool(Answer(200, stream, other, KEY))) is ReceiptServerError
    assert type(judge_tool(Answer(200, stream, other + ours[:30], KEY))) is ReceiptServerError


@pytest.mark.parametrize("body", [b"", b"ok", b'{"ok": true}', b'{"error": null}', b"{half"])
def test_a_plain_post_is_delivered_by_its_status(body: bytes) -> None:
    assert judge(Answer(200, {"Content-Type": "text/plain"}, body)) is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": "boom"}', ReceiptServerError),
        (b'{"ok": false}', ReceiptServerError),
        (b'{"code": "TASK_NOT_FOUND"}', ReceiptSuperseded),
        (b"{half", ReceiptServerError),
    ],
)
def test_a_plain_post_whose_json_tells_of_an_error(body: bytes, kind: type[ReceiptError]) -> None:
    assert type(judge(Answer(200, {"Content-Type": "application/json"}, body))) is kind


def test_what_a_tool_gave() -> None:
    assert tool_result(content({"a": 1})) == {"a": 1}
    assert tool_result(content("plain")) == "plain"
    assert tool_result(content("plain", structuredContent={"b": 2})) == {"b": 2}
    assert tool_result(reply(result={"x": 1})) == {"x": 1}
    with pytest.raises(ReceiptRefused):
        tool_result(content({"code": "UNAUTHORIZED"}, isError=True))


def test_evidence_is_short_and_has_no_secrets() -> None:
    body = json.dumps({"error": "password=hunter2 " + "x" * 100_000}).encode()
    error = judge(Answer(500, {}, body))
    assert len(str(error)) < 300
    assert "hunter2" not in str(error)


NAMES = st.sampled_from(["error", "code", "data", "result", "id", "retry_after", "content"])
LEAVES = st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(list(CODES))
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=10)


@settings(max_examples=60)
@given(
    st.integers(100, 599),
    st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["application/json", "text/event-stream", ""]),
)
def test_whatever_comes_is_judged(status: int, body: bytes, kind: str) -> None:
    answer = Answer(status, {"Content-Type": kind}, body, KEY)
    for look in (judge, judge_tool):
        error = look(answer)
        assert error is None or isinstance(error, ReceiptError)
    if not 200 <= status < 300:
        assert judge(answer) is not None
