"""S1, S3: in a network of its own, where every address answers, only public ones are ever reached."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.net.test_guard import DENIED, PUBLIC
from tests.support.canary_net import DELIVERIES
from tests.support.rig.fleet import ROOT, environment

ENTER = ["unshare", "--net", "--mount"]


@pytest.mark.timeout(300)
def test_s1_s3_only_the_public_internet_is_reached_whatever_a_name_leads_to() -> None:
    if not shutil.which("ip") or subprocess.run([*ENTER, "true"], check=False, capture_output=True).returncode:
        reason = "needs ip and unshare, and the right to make a network namespace"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    addresses = [each for each in (*PUBLIC, *DENIED) if "%" not in each]
    assert len(addresses) >= 120
    command = [*ENTER, sys.executable, "-m", "tests.support.canary_net", json.dumps(addresses)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    reached, passed = set(found["reached"]), set(found["passed"])
    assert len(reached & set(PUBLIC)) >= 20, "the canary can be hit"
    assert len(reached & set(DENIED)) >= 70
    assert passed == reached & set(PUBLIC)
    # S3: names that lead elsewhere each time.
    assert set(found["hits"]) == {"8.8.8.8"}
    assert sum(sum(each.values()) for each in found["said"].values()) == DELIVERIES
    assert found["said"]["public.example"].keys() == {""}
    assert found["lookups"]["mixed.example"] == sum(found["said"]["mixed.example"].values()), "one for each connection"
    for name in ("mixed.example", "both.example", "chain.example", "inner.example"):
        assert found["said"][name].keys() == {"denied"}, name
    assert found["said"]["rebound.example"].keys() == {"", "denied"}
