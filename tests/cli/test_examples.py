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
    first, second, *sent = told.stdout.splitlines()
    assert first.startswith("dead letter ")
    assert second.endswith(" after 3 errors")
    assert sent == ["sent 'hi' to ann@example.org", "sent 'hi' to bob@example.org"]
