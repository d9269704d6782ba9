"""`redrive worker …`: worker processes, one or a supervised group, and what can be asked of those that run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, config_option, pass_on, verbose_option
from redrive.cli.exits import Talk
from redrive.cli.root import LazyGroup

if TYPE_CHECKING:
    from redrive.settings import Loaded

worker = LazyGroup(
    "worker",
    {
        "run": "redrive.cli.worker:run",
        "list": "redrive.cli.worker_list:list_workers",
        "drain": "redrive.cli.worker_end:drain",
        "stop": "redrive.cli.worker_end:stop",
    },
    help="""Worker processes: run them, see them, end them.

\b
Examples:
  redrive worker run tasks:app
  redrive worker run tasks:app --processes 4
  redrive worker list
  redrive worker drain web-1-4711 --reason 'new release'
""",
)

ABOUT = """Run a worker for the app in MODULE:APP, looked for from the current directory.

\b
Examples:
  redrive worker run tasks:app
  redrive worker run shop.tasks:app --queues emails,invoices -c 20
  redrive worker run tasks:app --processes 4
  redrive worker run tasks:app --reload
  redrive worker run tasks:app --until-idle

The app brings its own store and handlers. SIGTERM or Ctrl-C once: take nothing new, let handlers finish within the
grace, release the rest. Twice: at once. Exit 0 after SIGTERM, 130 after Ctrl-C or a second signal.

With --processes a supervisor starts so many, passes signals on and starts another when one dies, after 1s and then
longer up to 30s. One that ends with exit code 0 is not replaced. --reload starts them anew when a source file of the
app changes, and is meant for development.

--health-port serves /health/live, /health/ready and /metrics. Ready: the worker takes work and its store answers, 503
otherwise. /metrics needs redrive[metrics] and has all of prometheus_client's registry. With --processes the supervisor
serves the health of the group on this port, and process 1 serves its own on the next one, process 2 on the one after.

What is not said here may be in the settings: see redrive config show.
"""


@click.command("run", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", metavar="A,B", help="Only these queues; otherwise all that have a handler.")
@click.option("--processes", metavar="N", help="A supervisor with so many processes; otherwise one alone.")
@click.option("-c", "--concurrency", metavar="N", help="At most so many items at once in a process, over all queues.")
@click.option("--until-idle", is_flag=True, help="End when nothing is left that would become due by itself.")
@click.option("--grace", metavar="DURATION", help="How long handlers may finish.  [default: 30s]")
@click.option("--reload", "reloads", is_flag=True, help="Start anew when a source file changes.")
@click.option(
    "--health-port", metavar="N", type=click.IntRange(0, 65_535), help="Serve probes and metrics; 0: any port."
)
@click.option("--health-host", metavar="ADDRESS", default="127.0.0.1", help="On this address.  [default: 127.0.0.1]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--json-logs", is_flag=True, help="Log JSON objects, one a line.")
@click.option("--line", type=int, hidden=True)
@config_option
@verbose_option
@click.pass_obj
def run(
    talk: Talk,
    *,
    target: str,
    queues: str | None,
    processes: str | None,
    concurrency: str | None,
    until_idle: bool,
    grace: str | None,
    reloads: bool,
    health_port: int | None,
    health_host: str,
    log_level: str | None,
    json_logs: bool,
    line: int | None,
) -> int:
    from redrive.settings import load

    flags = {
        "worker.queues": queues,
        "worker.processes": processes,
        "worker.concurrency": concurrency,
        "worker.grace": grace,
        "log.level": log_level,
        "log.format": "json" if json_logs else None,
    }
    loaded = load(config=talk.config, flags=flags)
    pass_on(talk, loaded.settings)
    if line is None and (reloads or loaded.settings.worker.processes is not None):
        return _group(talk, target, loaded, health_host, health_port, until_idle=until_idle, reloads=reloads)
    return _serve(talk, target, loaded, health_host, health_port, until_idle=until_idle, line=line)


def _serve(
    talk: Talk, target: str, loaded: Loaded, host: str, port: int | None, *, until_idle: bool, line: int | None
) -> int:
    """`line` leads to the supervisor, if this is one of a group."""
    from redrive.app.internals import parts_of
    from redrive.cli.load import load_app
    from redrive.cli.worker_health import served
    from redrive.cli.worker_line import ChildLine, own_files
    from redrive.cli.worker_logs import set_up_logging
    from redrive.cli.worker_session import Session

    chosen, log = loaded.settings.worker, loaded.settings.log
    supervisor = None if line is None else ChildLine(line)
    try:
        app = load_app(target)
        parts_of(app).load_alerts(loaded.settings.alerts)
    finally:
        if supervisor is not None:
            # Also of a module that cannot be imported: it will be mended there.
            supervisor.loaded_from([*own_files(), *([str(loaded.file)] if loaded.file else [])])
    set_up_logging(debug=talk.debug, level=log.level, format=log.format)
    queues = list(chosen.queues) or None
    # Before the store is opened: a misspelled name must not make a new store.
    parts_of(app).registry.choose(queues)
    session = Session(app, chosen.grace, supervisor)
    with served(host, port, session.health, lambda: app.metrics):
        return asyncio.run(session.serve(queues, until_idle=until_idle, concurrency=chosen.concurrency))


def _group(
    talk: Talk, target: str, loaded: Loaded, host: str, port: int | None, *, until_idle: bool, reloads: bool
) -> int:
    from redrive.cli.worker_group import Group, worker_command
    from redrive.cli.worker_health import GroupHealth, served
    from redrive.cli.worker_logs import set_up_logging
    from redrive.cli.worker_reload import Sources

    chosen, log = loaded.settings.worker, loaded.settings.log
    set_up_logging(debug=talk.debug, level=log.level, format=log.format)
    options = ["--grace", f"{chosen.grace}ms", "--log-level", log.level]
    options += ["--queues", ",".join(chosen.queues)] if chosen.queues else []
    options += ["--concurrency", str(chosen.concurrency)] if chosen.concurrency else []
    options += ["--json-logs"] if log.format == "json" else []
    options += ["--until-idle"] if until_idle else []
    options += ["--verbose"] if talk.debug else []
    options += ["--health-host", host] if port is not None else []

    sources = Sources() if reloads else None
    group = Group(worker_command(target, options), chosen.processes or 1, chosen.grace, sources)
    group.health_port = port
    health = GroupHealth(group)
    with served(host, port, health.report, lambda: health):
        return asyncio.run(group.run())
