"""A server that stops answering, or becomes a read-only replica, is named in one line, without its password."""

import contextlib
from collections.abc import Callable

import pytest

from redrive.cli.exits import Exit
from tests.cli.test_servers import Refused, in_a_folder, quick, refused, with_user
from tests.support.cli import here
from tests.support.in_process import RunWorker, run_worker
from tests.support.servers.postgres import PostgresServer, private_postgres
from tests.support.servers.redis import RedisServer, private_redis
from tests.support.servers.server import HOST, with_options
from tests.support.signals import signals

__all__ = ["in_a_folder", "refused", "run_worker", "signals"]


@pytest.mark.parametrize("private", [private_postgres, private_redis], ids=["postgres", "redis"])
def test_a_server_that_does_not_answer(
    private: Callable[[], contextlib.AbstractContextManager[PostgresServer | RedisServer]], refused: Refused
) -> None:
    with private() as server:
        server.pause()
        url = with_options(server.url(), {"timeout": "200ms", "connect_timeout": "200ms"})
        refused(url, Exit.STORE, f"{HOST}:{server.port}", commands=(["status"], ["db", "status"], ["db", "migrate"]))
        server.resume()


def test_a_hot_standby(refused: Refused, capsys: pytest.CaptureFixture[str], run_worker: RunWorker) -> None:
    with private_postgres() as server:
        assert here(capsys, "db", "migrate", "--store", server.url()).code == Exit.DONE
        server.become_standby()
        url = with_user(server.url(), "redrive")
        refused(url, Exit.STORE, "is a read-only replica", "primary", commands=(["status"], ["letters", "list"]))
        worker = run_worker(quick(url), "--until-idle", "-v")
        assert (worker.code, "is a read-only replica" in worker.err) == (Exit.STORE, True)
        told = here(capsys, "db", "status", "--store", url)
        assert (told.code, "replica\tyes\n" in told.out) == (Exit.STORE, True)
        assert (
            told.err == "redrive: no app can work with it: a read-only replica; use the address of the primary server\n"
        )
        doctor = here(capsys, "doctor", "--store", url)
        assert (doctor.code, "bad\tstore\t" in doctor.out) == (Exit.UNSOUND, True)
        assert here(capsys, "db", "check", "--store", url).out == "checked\t0\n"
