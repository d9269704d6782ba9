import json
import subprocess
import sys

import pytest

import redrive

# Only what the caller asks for is loaded: the command line, settings, engines and doors come with their own imports.
NOT_WANTED = ("click", "yaml", "sqlite3", "http.server", "aiohttp", "httpx", "requests", "psycopg", "redis", "rich")


@pytest.mark.slow
def test_importing_redrive_loads_no_command_line_no_driver_and_no_http() -> None:
    code = "import redrive, sys, json; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert [name for name in loaded if name.startswith(NOT_WANTED)] == []
    assert [
        name for name in loaded if name.startswith(("redrive.cli", "redrive.testing", "redrive.stores.sqlite"))
    ] == []


@pytest.mark.slow
def test_the_entry_point_costs_nothing_until_it_is_called() -> None:
    code = "import redrive.cli, sys; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_all_equals_what_is_public() -> None:
    public = {name for name, value in vars(redrive).items() if not name.startswith("_") and not _is_module(value)}
    assert public | {"__version__"} == set(redrive.__all__)
    assert redrive.__all__ == sorted(redrive.__all__)


def _is_module(value: object) -> bool:
    return type(value).__name__ == "module"
