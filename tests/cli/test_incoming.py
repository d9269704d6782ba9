"""What is imported for a command is never looked through for garbage; what it makes is."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from redrive.cli.incoming import incoming

OF_A_COMMAND = """
import gc
from redrive.cli.incoming import alone, incoming
alone()
try:
    with incoming():
        print(gc.isenabled())
        import click
        raise ImportError
except ImportError:
    print(gc.isenabled(), gc.get_freeze_count() > 1_000)
"""


def test_modules_of_a_command_are_put_aside_and_the_rest_is_looked_through() -> None:
    told = subprocess.run([sys.executable, "-c", OF_A_COMMAND], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["False", "True True"]


@pytest.mark.parametrize("enabled", [True, False])
def test_in_a_process_of_somebody_else_nothing_changes(enabled: bool) -> None:
    before = gc.get_freeze_count()
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with incoming():
            assert gc.isenabled() is enabled
        assert (gc.isenabled(), gc.get_freeze_count()) == (enabled, before)
    finally:
        (gc.enable if was else gc.disable)()
