import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import PATIENCE, environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_the_quick_start_fails_and_recovers(tmp_path: Path) -> None:
    told = example("quickstart.py", tmp_path)
    assert told.returncode == 0, told.stderr
    letter, sent = told.stdout.splitlines()
    assert letter.startswith("dead letter ")
    assert letter.endswith(" after 3 errors")
    assert sent == "sent to ann@example.org"


def test_the_quick_start_is_read_in_a_minute() -> None:
    source = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
