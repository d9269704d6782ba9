import os
from pathlib import Path

import pytest

from tests.support.warm_child import REDRIVE
from tests.support.warm_python import WarmPython

pytestmark = pytest.mark.slow
SCRIPT = """
import atexit, os, sys
from threading import active_count
atexit.register(print, "ended")
print(__name__, sys.argv[1:], sys.path[0] == os.getcwd(), os.environ["SHOP"], sys.stdin.read(), active_count())
sys.exit(3)
"""


def test_a_script_runs_as_in_a_new_interpreter(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = warm_python.run("script.py", "a", cwd=tmp_path, env={"SHOP": "open"}, text="said")
    assert (ran.returncode, ran.stderr) == (3, "")
    assert ran.stdout.splitlines() == ["__main__ ['a'] True open said 1", "ended"]


def test_an_error_of_a_script_is_shown(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "script.py").write_text("raise ValueError('no such shop')")
    ran = warm_python.run("script.py", cwd=tmp_path, env={})
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "ValueError: no such shop")


def test_a_child_that_a_test_gave_up_is_ended_before_the_next(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.stdin.read()")
    reader, writer = os.pipe()
    warm_python.start(["script.py"], cwd=tmp_path, env={}, streams=[reader, 1, 2])
    os.close(reader)
    ran = warm_python.run(REDRIVE, "--version", cwd=tmp_path, env={})
    os.close(writer)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "redrive")
