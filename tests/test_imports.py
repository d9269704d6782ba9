import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import redrive
import redrive.testing

LOADED = """
import sys, json
before = set(sys.modules)
import redrive
redrive.Redrive
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


@pytest.mark.parametrize("package", [redrive, redrive.testing])
def test_all_is_what_is_public(package: ModuleType) -> None:
    assert package.__all__ == sorted(package.__all__)
    assert dir(package) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    # A name that was added for type checkers only would be missing where it is used.
    source = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    checked = next(node for node in source.body if isinstance(node, ast.If))
    told = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == set(package.__all__) - {"__version__"}


@pytest.mark.slow
def test_the_bare_import_is_next_to_nothing() -> None:
    """pytest pays for it in every project, because of the plugin, and every command of the command line does."""
    code = "import sys, redrive; sys.exit(any(name in sys.modules for name in ('asyncio', 'msgspec', 'sqlite3')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_modules_of_the_api_need_no_import_of_their_own() -> None:
    names = ("errors.NotFound", "events.Finished", "blocking.Redrive", "testing.drain")
    code = "import redrive; " + "; ".join(f"redrive.{name}" for name in names)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'redrive' has no attribute 'nothing'"):
        redrive.nothing  # type: ignore[attr-defined]  # noqa: B018 - it raises
