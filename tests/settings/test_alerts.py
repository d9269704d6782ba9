"""Alerts in the settings: all faults at once, with their origin, and no secret ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import Redrive
from redrive.app.internals import parts_of
from redrive.errors import BadSettings
from redrive.settings import load
from redrive.settings.model import fields
from tests.settings.test_load import SECRET, TOML, faults_of

BAD_ALERTS = """
[alerts.channels.ops]
kind = "slack"
url = "https://hooks.slack.com/services/hunter2"
quiet = "22-7"
timezone = "Mars/X"

[alerts.channels.mail]
kind = "email"
host = "a b"
sender = "x"
prt = 3

[alerts.channels.other]
kind = "slak"
digest = "x"

[alerts.channels.page]
kind = "pagerduty"
routing_key_env = "NO_SUCH_VARIABLE"

[alerts.rules.old]
when = "oldest_letter"
than = "-1h"
to = "ops"
severity = "loud"
for = "x"

[alerts.rules."a b"]
when = "letters"
repeat = "never"
"""
ALERT_FAULTS = (
    "channels.ops.quiet: '22-7' is not a range of hours",
    "channels.ops.timezone: 'Mars/X' is not a time zone",
    "channels.mail.host: 'a b' is not a host",
    "channels.mail.sender: 'x' is not an address",
    "channels.mail.prt: there is no such option",
    "channels.mail.to: it is missing (email needs it)",
    "channels.other.kind: 'slak' is unknown (did you mean slack?)",
    "channels.other.digest: 'x' is not a duration",
    "channels.page.routing_key_env: the variable 'NO_SUCH_VARIABLE' is not set",
    "rules.old.than: '-1h' is not a duration",
    "rules.old.severity: 'loud' is unknown",
    "rules.old.for: 'x' is not a duration",
    "rules.a b.more_than: it is missing (letters needs it)",
    "rules.a b.to: it is empty",
    "rules.a b: 'a b' is not a name",
)


def test_everything_that_is_wrong_with_alerts_is_told_at_once(folder: Path) -> None:
    (folder / "redrive.toml").write_text(BAD_ALERTS)
    with pytest.raises(BadSettings) as raised:
        load(environ={})
    faults = raised.value.faults
    assert len(faults) == len(ALERT_FAULTS)
    for wanted in ALERT_FAULTS:
        assert any(each.startswith(f"alerts.{wanted}") and str(folder) in each for each in faults), (wanted, faults)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"ops": 3}'])
def test_alerts_in_a_variable_are_json(text: str) -> None:
    (fault,) = faults_of(REDRIVE_ALERTS_CHANNELS=text)
    assert fault.startswith("alerts.channels")
    assert fault.endswith("(from environment REDRIVE_ALERTS_CHANNELS)") or "from environment" in fault


def test_secrets_of_channels_come_from_variables_and_files_and_are_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_URL", f"https://hooks.slack.com/services/{SECRET}\n")
    (folder / "redrive.toml").write_text('[alerts.channels.ops]\nkind = "slack"\nurl_env = "OPS_URL"\n')
    loaded = load(environ={})
    assert loaded.settings.alerts.channels["ops"].options == {"url": f"https://hooks.slack.com/services/{SECRET}"}
    assert fields()["alerts.channels"].show(loaded.settings.alerts.channels) == {
        "ops": "slack url=https://hooks.slack.com/…"
    }
    assert SECRET not in repr(loaded)
    (folder / "channels.json").write_text('{"ops": {"kind": "slack", "url": "https://hooks.slack.com/x"}}')
    given = load(environ={"REDRIVE_ALERTS_CHANNELS_FILE": str(folder / "channels.json")})
    assert given.settings.alerts.channels["ops"].options == {"url": "https://hooks.slack.com/x"}


def test_an_app_without_a_store_of_its_own_takes_its_alerts_from_the_settings(folder: Path) -> None:
    (folder / "redrive.toml").write_text(TOML)
    for app, names in ((Redrive(), ["old-letters"]), (Redrive("memory:"), [])):
        assert list(parts_of(app).alerts.rules) == names
