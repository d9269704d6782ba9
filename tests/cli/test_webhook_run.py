"""`redrive webhook run`, `edge`, `hub` and `listen`: what they serve, and how they end."""

import http.client
import json
import logging
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from redrive.cli import webhook_listen, worker_session
from redrive.cli.exits import Exit
from redrive.cli.output import say
from tests.support.bound import line_in
from tests.support.cli import COMMAND, PATIENCE, Told, WorkerProcess, environment, here, made_in
from tests.support.in_process import LOGGER, Unguarded, own_logging
from tests.support.signals import Signals
from tests.support.target import Target, target

__all__ = ["target"]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    monkeypatch.delenv("REDRIVE_HUB_TOKEN", raising=False)
    monkeypatch.setenv("REDRIVE_WEBHOOKS_ALLOW", "127.0.0.0/8")
    monkeypatch.setattr(worker_session, "Guard", Unguarded)
    monkeypatch.setattr(worker_session, "LAST_WORDS", PATIENCE * 1000)


def post(port: int, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


class Visitor(logging.Handler):
    """Calls `visit` in a thread with the port, when the process says that it receives."""

    def __init__(self, visit: Callable[[int], None]) -> None:
        super().__init__()
        self._visit = visit
        self._failed: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(record.getMessage())

    def hear(self, said: str) -> None:
        found = ADDRESS.search(said)
        if found is not None and "receiving" in said:
            self._thread = threading.Thread(target=self._call, args=(int(found[1]),))
            self._thread.start()

    def _call(self, port: int) -> None:
        try:
            self._visit(port)
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            self._failed.append(error)

    def joined(self) -> None:
        assert self._thread is not None, "nothing was received"
        self._thread.join(PATIENCE)
        for error in self._failed:
            raise error


def visited(capsys: pytest.CaptureFixture[str], visit: Callable[[int], None], *args: str) -> Told:
    """What the process logs is heard, and what `listen` prints."""
    visitor = Visitor(visit)

    def saying(text: str) -> None:
        say(text)
        visitor.hear(text)

    with own_logging(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhook_listen, "say", saying)
        logging.getLogger(LOGGER).addHandler(visitor)
        told = here(capsys, "webhook", *args)
    visitor.joined()
    return told


def test_run_receives_and_delivers_in_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signals: Signals, target: Target
) -> None:
    made_in(tmp_path)
    here(capsys, "webhook", "endpoint", "create", f"{target.url}/in", "--id", "shop")

    def visit(port: int) -> None:
        try:
            assert post(port, "/h/shop?a=1", b"hello")[0] == 200
            assert post(port, "/h/shp")[0] == 404
            assert post(port, "/h/shop", b"x" * 2000)[0] == 413
            assert target.came.acquire(timeout=PATIENCE)
        finally:
            signals.send(signal.SIGTERM)

    told = visited(capsys, visit, "run", "--http", "127.0.0.1:0", "--max-body", "1KiB", "--json-logs")
    assert told.code == Exit.DONE, told.err
    assert [(each.path, each.body) for each in target.got] == [("/in?a=1", b"hello")]
    lines = [json.loads(line) for line in told.err.splitlines()]
    assert any(line["message"].startswith("SIGTERM: stopping") for line in lines)
    assert here(capsys, "webhook", "list", "--status", "delivered", "-q").out.count("\n") == 1


def test_without_http_it_delivers_and_an_interrupt_is_130(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signals: Signals, target: Target
) -> None:
    made_in(tmp_path)
    here(capsys, "webhook", "endpoint", "create", f"{target.url}/in", "--id", "shop")
    here(capsys, "webhook", "send-test", "shop")

    def interrupt() -> None:
        target.came.acquire(timeout=PATIENCE)
        signals.send(signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with own_logging():
        told = here(capsys, "webhook", "run")
    waiting.join()
    assert (told.code, "SIGINT: stopping" in told.err) == (Exit.INTERRUPTED, True)
    assert json.loads(target.got[0].body)["type"] == "redrive.test"


def test_an_address_in_use_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Target) -> None:
    made_in(tmp_path)
    with own_logging():
        told = here(capsys, "webhook", "run", "--http", target.url.removeprefix("http://"))
    assert (told.code, "--http: cannot listen on 127.0.0.1:" in told.err, "in use" in told.err) == (
        Exit.USAGE,
        True,
        True,
    )


@pytest.mark.parametrize("command", ["run", "edge", "listen --forward http://127.0.0.1:9 --store sqlite:///redrive.db"])
def test_each_process_judges_the_alert_rules_of_the_settings_and_sends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signals: Signals, target: Target, command: str
) -> None:
    line_in(tmp_path, 1)  # a letter
    target.alerts(tmp_path)

    def visit(_: int) -> None:
        try:
            assert target.came.acquire(timeout=PATIENCE)
        finally:
            signals.send(signal.SIGTERM)

    told = visited(capsys, visit, *command.split(), "--http", "127.0.0.1:0")
    assert told.code == Exit.DONE, told.err
    (alert,) = json.loads(target.got[0].body)["alerts"]
    assert (target.got[0].path, alert["rule"], alert["queues"]) == ("/alerts", "letters", ["orders"])


def test_a_channel_of_the_settings_hears_of_webhooks_that_fail(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    signals: Signals,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_in(tmp_path)
    target.alerts(tmp_path)
    monkeypatch.setenv("REDRIVE_ALERTS_RULES", "{}")
    monkeypatch.setenv("REDRIVE_WEBHOOKS_NOTIFY", "opps")
    told = here(capsys, "webhook", "run")
    assert (told.code, "webhooks.notify: 'opps' is no channel" in told.err) == (Exit.USAGE, True)
    assert "did you mean 'ops'?" in told.err
    monkeypatch.setenv("REDRIVE_WEBHOOKS_NOTIFY", "ops")
    here(capsys, "webhook", "endpoint", "create", f"{target.url}/404", "--id", "shop")

    def visit(port: int) -> None:
        try:
            post(port, "/h/shop")
            assert all(target.came.acquire(timeout=PATIENCE) for _ in range(2))
        finally:
            signals.send(signal.SIGTERM)

    assert visited(capsys, visit, "run", "--http", "127.0.0.1:0").code == Exit.DONE
    assert [each.path for each in target.got] == ["/404", "/alerts"]
    (alert,) = json.loads(target.got[1].body)["alerts"]
    assert (alert["rule"], alert["subject"], alert["queues"]) == ("failed", "shop", ["webhook:shop"])


class _Edge(BaseHTTPRequestHandler):
    """Refuses every token."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"code": "TOKEN_REVOKED", "error": "the token was revoked"}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Edge) as edge:
        serving = threading.Thread(target=edge.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{edge.server_address[1]}"
        edge.shutdown()
        serving.join()


def test_a_hub_that_is_refused_for_good_ends_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("rdh_1_s3cret\n")
    with refusing() as url, own_logging():
        told = here(capsys, "webhook", "hub", "--edge", url, "--token-file", "token")
    assert (told.code, "TOKEN_REVOKED: the token was revoked" in told.err) == (Exit.NOT_ALLOWED, True)
    assert "s3cret" not in told.err
    assert not (tmp_path / "redrive.db").exists(), "a hub has no store"


def test_listen_shows_each_attempt(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    signals: Signals,
    target: Target,
) -> None:
    target.answers, target.body = [200, 400, 200, 200], b'{"error": "no\x1b such", "token": "t0p"}'

    def visit(port: int) -> None:
        try:
            for path, headers in (("/h/dev", {"X-GitHub-Event": "push"}), ("/h/dev?a=1", {})):
                assert post(port, path, b'{"type": "order.paid", "password": "p4ss"}', **headers)[0] == 200
                assert target.came.acquire(timeout=PATIENCE)
        finally:
            signals.send(signal.SIGTERM)

    def listened(*more: str) -> Told:
        return visited(capsys, visit, "listen", "--forward", f"{target.url}/x", "--http", "127.0.0.1:0", *more)

    told = listened()
    assert told.code == Exit.DONE, told.err
    first, second, below = told.out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}\t\w+\tpush\t200\t\d+ ms", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}\t\w+\torder.paid\t400\t\d+ ms", second)
    assert below == '  {"error": "no\\x1b such", "token": "[redacted]"}'
    assert [each.path for each in target.got] == ["/x", "/x?a=1"]
    assert "webhooks are kept in sqlite:///hooks.db" in told.err
    assert (tmp_path / "hooks.db").exists()
    again = listened("-v")
    assert again.out.count('  >   "password": "[redacted]"\n') == 2
    assert not [secret for secret in ("p4ss", "t0p", "\x1b") if secret in told.out + again.out]


class Process(WorkerProcess):
    @classmethod
    def start(cls, *args: str, cwd: Path) -> "Process":
        env = environment(REDRIVE_WEBHOOKS_ALLOW="127.0.0.0/8")
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen([*COMMAND, "webhook", *args], cwd=cwd, env=env, text=True, **pipes)
        return cls(process, queue.SimpleQueue())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(*args: str) -> Process:
        started.append(Process.start(*args, cwd=tmp_path))
        return started[-1]

    yield begin
    for process in started:
        process.close()


@pytest.mark.slow
def test_an_edge_and_a_hub_as_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: Callable[..., Process], target: Target
) -> None:
    made_in(tmp_path)
    here(capsys, "webhook", "endpoint", "create", "--id", "inside", "--via", "hub")
    token = here(capsys, "webhook", "token", "create", "warehouse", "--endpoint", "inside").out
    (tmp_path / "token").write_text(token)
    edge = start("edge", "--http", "127.0.0.1:0")
    found = ADDRESS.search(edge.until("receiving at"))
    assert found is not None
    port = int(found[1])
    leading = f"inside={target.url}/in"
    hub = start("hub", "--edge", found[0], "--token-file", "token", "--name", "h1", "--destination", leading)
    hub.until("is connected")
    assert post(port, "/h/inside", b"hello")[0] == 200
    assert target.came.acquire(timeout=PATIENCE)
    edge.until("HTTP 200")
    [shown] = json.loads(here(capsys, "webhook", "hubs", "--json").out)
    assert (shown["name"], shown["connected"], shown["endpoints"]) == ("h1", True, ["inside"])
    hub.signal(signal.SIGTERM)
    assert hub.end() == Exit.DONE
    edge.signal(signal.SIGINT)
    assert edge.end() == Exit.INTERRUPTED
    assert here(capsys, "webhook", "list", "--status", "delivered", "-q").out.count("\n") == 1


@pytest.mark.slow
def test_a_second_signal_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: Callable[..., Process]
) -> None:
    """While a target does not answer, and a sender does not end its request."""
    made_in(tmp_path)
    listener = ThreadingHTTPServer(("127.0.0.1", 0), _Edge)
    here(capsys, "webhook", "endpoint", "create", f"http://127.0.0.1:{listener.server_address[1]}/", "--id", "shop")
    run = start("run", "--http", "127.0.0.1:0", "--grace", "1h")
    found = ADDRESS.search(run.until("receiving at"))
    assert found is not None
    assert post(int(found[1]), "/h/shop", b"hello")[0] == 200
    request, _ = listener.get_request()
    slow = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
    slow.putrequest("POST", "/h/shop")
    slow.putheader("Content-Length", "9")
    slow.endheaders(b"half")
    run.signal(signal.SIGTERM)
    run.until("SIGTERM: stopping")
    run.signal(signal.SIGTERM)
    run.until("SIGTERM again: stopping at once")
    assert run.end() == Exit.INTERRUPTED
    slow.close()
    request.close()
    listener.server_close()
    assert here(capsys, "webhook", "list", "--status", "pending", "-q").out.count("\n") == 1, "it was given back"
