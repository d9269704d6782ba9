import json
import subprocess
import sys

import pytest

import redrive

LOADED = """
import sys, json
before = set(sys.modules)
import redrive
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.slow
def test_importing_redrive_loads_nothing_but_the_library() -> None:
    """No command line, no driver, no HTTP: they come with what needs them."""
    loaded = json.loads(
        subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    )
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign <= {"redrive", "msgspec", "typing_extensions"}  # msgspec looks for the last one
    unwanted = ("http", "redrive.cli", "redrive.testing", "redrive.__main__")
    assert [name for name in loaded if name.startswith(unwanted)] == []


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
