"""`redrive demo` kills its own worker processes, and every item is accounted for."""

from pathlib import Path

from tests.support.cli import piped


def test_it_adds_up_and_leaves_nothing(tmp_path: Path) -> None:
    told = piped("demo", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines()[-1] == "Nothing was lost."
    assert told.stdout.count("(SIGKILL)") == 3
    assert "WRONG" not in told.stdout
    assert list(tmp_path.iterdir()) == []
