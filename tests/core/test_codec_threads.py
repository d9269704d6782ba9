"""Types that several threads meet for the first time at the same moment, as reader and writer of a store do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.rig.fleet import ROOT, environment

SCRIPT = """
import dataclasses, sys, threading
from redrive.core import codec
from redrive.core import typed_codec

sys.setswitchinterval(1e-6)
BY = {"codec": codec.decode, "bodies": lambda data, kind: typed_codec.load(data, kind, "")}[sys.argv[1]]
TYPES, THREADS = 150, 6
FIELDS = [(f"field_{number}", int | str | None, None) for number in range(20)]

def kinds():
    for number in range(TYPES):
        inner = dataclasses.make_dataclass(f"Inner{number}", FIELDS)
        nested = [("inner", inner, None), ("many", list[inner], None)]
        yield dataclasses.make_dataclass(f"Outer{number}", [*nested, *FIELDS])

made = list(kinds())
together = threading.Barrier(THREADS)

def meet():
    for kind in made:
        together.wait()
        assert BY(b'{"inner": {"field_1": 1}, "many": [{"field_2": "x"}]}', kind).inner.field_1 == 1

threads = [threading.Thread(target=meet) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("met")
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["codec", "bodies"])
def test_a_type_that_threads_meet_together(by: str) -> None:
    """In a process of its own: what is half known to msgspec crashes whoever uses it."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, by], check=False, capture_output=True, text=True, cwd=ROOT, env=environment()
    )
    assert (done.returncode, done.stdout) == (0, "met\n"), done.stderr[-2000:]
