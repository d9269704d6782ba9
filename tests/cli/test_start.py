"""What a command waits for before it begins: modules, not milliseconds, so that no slow machine fails it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import letters_in

pytestmark = pytest.mark.slow

LOADED = """
import json, sys
from redrive.cli import run
sys.stdout = open("/dev/null", "w")
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
LIGHT = {
    "redrive",
    "redrive._late",
    "redrive._version",
    "redrive.cli",
    "redrive.cli.access",
    "redrive.cli.exits",
    "redrive.cli.incoming",
    "redrive.cli.output",
    "redrive.cli.root",
    "redrive.errors",
}
"""All of redrive that `--version` may load."""
FOREIGN = {"click", "msgspec", "typing_extensions"}
HEAVY = (
    "redrive.blocking",
    "redrive.cli.demo",
    "redrive.cli.letters",
    "redrive.cli.worker",
    "redrive.engine.keeper",
    "redrive.engine.reaper",
    "redrive.engine.runner",
    "redrive.engine.worker",
    "redrive.office.explain",
    "redrive.stores.memory",
    "redrive.stores.postgres",
    "redrive.stores.redis",
    "redrive.testing",
    "cronsim",
    "rich",
    "tomllib",
    "yaml",
    "zoneinfo",
)
"""What `queue list` on SQLite has no business with."""


def loaded(folder: Path, *args: str) -> set[str]:
    """The modules in memory when the command has ended."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, *args], cwd=folder, capture_output=True, text=True, check=True
    )
    code, modules = json.loads(ended.stderr.splitlines()[-1])
    assert code == 0
    return set(modules)


def foreign(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"redrive", "__main__"}


@pytest.mark.parametrize("args", [["--version"], ["version", "--json"]])
def test_the_version_needs_nothing_of_the_library(tmp_path: Path, args: list[str]) -> None:
    modules = loaded(tmp_path, *args)
    assert {name for name in modules if name.startswith("redrive")} == LIGHT
    assert "asyncio" not in modules
    assert foreign(modules) - site() == {"click"}


def test_a_list_of_queues_needs_no_worker_and_no_other_store(tmp_path: Path) -> None:
    letters_in(tmp_path, "one")
    modules = loaded(tmp_path, "queue", "list", "--store", f"sqlite:///{tmp_path}/redrive.db")
    assert sorted(name for name in modules if name.startswith(HEAVY)) == []
    assert foreign(modules) - site() <= {*FOREIGN, "apsw"}


def site() -> set[str]:
    """What this installation of Python loads before anything else."""
    bare = "import sys; print(' '.join(sys.modules))"
    names = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=True).stdout.split()
    return {name.partition(".")[0] for name in names}
