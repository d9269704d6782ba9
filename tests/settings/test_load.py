"""One file, the environment and flags: the later wins, every fault is told with its origin, and no password ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec import structs

from redrive import Redrive
from redrive.app.internals import parts_of
from redrive.errors import BadSettings, ConfigError
from redrive.mailboxes import open_mailbox
from redrive.observe.alerts import command, oldest_letter
from redrive.observe.alerts.options import channel_of, rule_of
from redrive.receipts.settings import ReceiptSettings
from redrive.settings import AlertSettings, LogSettings, Settings, WorkerSettings, load, unknown_variables
from redrive.settings.files import find
from redrive.settings.model import fields
from redrive.webhooks.settings import WebhookSettings

SECRET = "hunter2"  # noqa: S105 - it opens nothing
SERVER = f"postgresql://shop:{SECRET}@db.example/shop"


def faults_of(**variables: str) -> tuple[str, ...]:
    with pytest.raises(BadSettings) as raised:
        load(environ=variables)
    assert SECRET not in str(raised.value)
    return raised.value.faults


# -- the order of sources ----------------------------------------------------------------------------------------------


def test_without_anything_all_is_as_by_default() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.file is None


TOML = """
store = "memory:"
encryption_keys = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
actor = "ops"
max_payload = "64KiB"
release = "1.4.2"

[log]
level = "warning"
format = "json"

[worker]
processes = 4
concurrency = 20
queues = ["emails", "invoices"]
grace = "1m"

[alerts]
every = "30s"

[alerts.channels.ops]
kind = "command"
argv = ["page", "ops"]
digest = "1m"

[alerts.rules.old-letters]
when = "oldest_letter"
than = "1h"
to = "ops"
for = "5m"

[receipts]
endpoint = "https://broker.example"
transport = "http"
auth_token = "t0ken"
tenant = "shop"
queue = "results"
max_retries = 3
backoff_base = 3
timeout = "5s"
file = "/var/lib/cognigate/dlq/receipts.json"

[webhooks]
http = "127.0.0.1:8080"
max_body = "1MiB"
allow = ["10.1.0.0/16", "::1"]
keep = "1d"
retention = "seed"
concurrency = 20
notify = "ops"
"""
YAML = """
store: "memory:"
encryption_keys: k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=
actor: ops
max_payload: 64KiB
release: 1.4.2
log: {level: warning, format: json}
worker:
  processes: 4
  concurrency: 20
  queues: [emails, invoices]
  grace: 1m
alerts:
  every: 30s
  channels:
    ops: {kind: command, argv: [page, ops], digest: 1m}
  rules:
    old-letters: {when: oldest_letter, than: 1h, to: [ops], for: 5m}
receipts:
  endpoint: https://broker.example
  transport: http
  auth_token: t0ken
  tenant: shop
  queue: results
  max_retries: 3
  backoff_base: 3.0
  timeout: 5s
  file: /var/lib/cognigate/dlq/receipts.json
webhooks:
  http: 127.0.0.1:8080
  max_body: 1048576
  allow: [10.1.0.0/16, "::1"]
  keep: 1d
  retention: seed
  concurrency: 20
  notify: ops
"""
FULL = Settings(
    "memory:",
    "ops",
    65536,
    "1.4.2",
    LogSettings("warning", "json"),
    WorkerSettings(4, 20, ("emails", "invoices"), 60_000),
    None,
    AlertSettings(
        {"ops": channel_of(command(["page", "ops"]), digest="1m")},
        {"old-letters": rule_of("old-letters", oldest_letter("1h"), to="ops", for_="5m")},
        30_000,
    ),
    {
        "receipts": ReceiptSettings(
            "https://broker.example",
            "http",
            "t0ken",
            "shop",
            "results",
            3,
            3.0,
            5_000,
            "/var/lib/cognigate/dlq/receipts.json",
        ),
        "webhooks": WebhookSettings(
            "127.0.0.1:8080", 1024 * 1024, ("10.1.0.0/16", "::1/128"), 86_400_000, "seed", 20, "ops"
        ),
    },
)


def without_keys(settings: Settings) -> Settings:
    """Which compare as what they are: secrets."""
    assert settings.encryption_keys is not None
    assert settings.encryption_keys.ids == ("k1",)
    return structs.replace(settings, encryption_keys=None)


@pytest.mark.parametrize(("name", "text"), [("redrive.toml", TOML), ("redrive.yaml", YAML), ("redrive.yml", YAML)])
def test_a_file_says_everything(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    loaded = load(environ={})
    assert without_keys(loaded.settings) == FULL
    assert loaded.file == folder / name
    assert set(loaded.origins.values()) == {str(folder / name)}


def test_variables_say_everything() -> None:
    variables = {
        "REDRIVE_STORE": "memory:",
        "REDRIVE_ACTOR": "ops",
        "REDRIVE_ENCRYPTION_KEYS": "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "REDRIVE_MAX_PAYLOAD": "64KiB",
        "REDRIVE_RELEASE": "1.4.2",
        "REDRIVE_LOG_LEVEL": "WARNING",
        "REDRIVE_LOG_FORMAT": "json",
        "REDRIVE_WORKER_PROCESSES": "4",
        "REDRIVE_WORKER_CONCURRENCY": "20",
        "REDRIVE_WORKER_QUEUES": "emails, invoices,emails",
        "REDRIVE_WORKER_GRACE": "60",
        "REDRIVE_ALERTS_EVERY": "30s",
        "REDRIVE_ALERTS_CHANNELS": '{"ops": {"kind": "command", "argv": ["page", "ops"], "digest": "1m"}}',
        "REDRIVE_ALERTS_RULES": '{"old-letters": {"when": "oldest_letter", "than": "1h", "to": "ops", "for": "5m"}}',
        "REDRIVE_RECEIPTS_ENDPOINT": "https://broker.example",
        "REDRIVE_RECEIPTS_TRANSPORT": "HTTP",
        "REDRIVE_RECEIPTS_AUTH_TOKEN": "t0ken",
        "REDRIVE_RECEIPTS_TENANT": "shop",
        "REDRIVE_RECEIPTS_QUEUE": "results",
        "REDRIVE_RECEIPTS_MAX_RETRIES": "3",
        "REDRIVE_RECEIPTS_BACKOFF_BASE": "3",
        "REDRIVE_RECEIPTS_TIMEOUT": "5s",
        "REDRIVE_RECEIPTS_FILE": "/var/lib/cognigate/dlq/receipts.json",
        "REDRIVE_WEBHOOKS_HTTP": "127.0.0.1:8080",
        "REDRIVE_WEBHOOKS_MAX_BODY": "1MiB",
        "REDRIVE_WEBHOOKS_ALLOW": "10.1.0.0/16, ::1",
        "REDRIVE_WEBHOOKS_KEEP": "1d",
        "REDRIVE_WEBHOOKS_RETENTION": "seed",
        "REDRIVE_WEBHOOKS_CONCURRENCY": "20",
        "REDRIVE_WEBHOOKS_NOTIFY": "ops",
    }
    loaded = load(environ=variables)
    assert without_keys(loaded.settings) == FULL
    assert loaded.origins["worker.grace"] == "environment REDRIVE_WORKER_GRACE"
    assert unknown_variables(variables) == ()


def test_flags_win_over_the_environment_and_that_over_the_file(folder: Path) -> None:
    (folder / "redrive.toml").write_text('actor = "file"\n[worker]\ngrace = "1s"\nprocesses = 1\n')
    variables = {"REDRIVE_WORKER_GRACE": "2s", "REDRIVE_WORKER_PROCESSES": "2"}
    loaded = load(environ=variables, flags={"worker.processes": "3", "worker.grace": None})
    worker = loaded.settings.worker
    assert (loaded.settings.actor, worker.grace, worker.processes) == ("file", 2000, 3)
    assert [loaded.origins[name] for name in ("actor", "worker.grace", "worker.processes")] == [
        str(folder / "redrive.toml"),
        "environment REDRIVE_WORKER_GRACE",
        "flag --processes",
    ]


def test_an_empty_variable_says_nothing() -> None:
    assert load(environ={"REDRIVE_STORE": "", "REDRIVE_CONFIG": "", "REDRIVE_STORE_FILE": ""}).settings == Settings()


# -- finding the file --------------------------------------------------------------------------------------------------


def test_the_nearest_file_upwards_is_meant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / "shop" / "deep"
    deep.mkdir(parents=True)
    (folder / "redrive.toml").write_text('actor = "above"')
    monkeypatch.chdir(deep)
    assert load(environ={}).settings.actor == "above"
    (folder / "shop" / "redrive.toml").write_text('actor = "nearer"')
    assert load(environ={}).settings.actor == "nearer"


@pytest.mark.parametrize("how", ["a link to nothing", "a folder"])
def test_a_file_that_was_meant_and_is_none_is_not_passed_over(folder: Path, how: str) -> None:
    """As a missing mount leaves it: work must not go to a store that nobody named."""
    file = folder / "redrive.toml"
    file.mkdir() if how == "a folder" else file.symlink_to("nowhere")
    (fault,) = faults_of()
    why = "Is a directory" if how == "a folder" else "No such file or directory"
    assert fault == f"{file}: it cannot be read: {why} (check where it leads and its rights)"


def test_a_relative_path_in_a_file_starts_at_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = folder / "a b%"
    (home / "below").mkdir(parents=True)
    (home / "redrive.toml").write_text('store = "sqlite:///queue.db?durability=process-crash"')
    monkeypatch.chdir(home / "below")
    quoted = str(home).replace("%", "%25").replace(" ", "%20")
    assert load(environ={}).settings.store == f"sqlite:///{quoted}/queue.db?durability=process-crash"
    # A variable is said here and now.
    assert load(environ={"REDRIVE_STORE": "sqlite:///queue.db"}).settings.store == "sqlite:///queue.db"
    (home / "redrive.toml").write_text('store = "sqlite:////srv/queue.db"')
    assert load(environ={}).settings.store == "sqlite:////srv/queue.db"


def test_a_relative_receipts_file_starts_at_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    (folder / "redrive.toml").write_text('[receipts]\nfile = "dlq/receipts.json"')
    monkeypatch.chdir(folder / "below")
    assert load(environ={}).settings.section(ReceiptSettings).file == str(folder / "dlq" / "receipts.json")
    mine = load(environ={"REDRIVE_RECEIPTS_FILE": "mine.json"}).settings
    assert mine.section(ReceiptSettings).file == "mine.json"


def test_a_named_file_is_the_only_one(folder: Path) -> None:
    (folder / "redrive.toml").write_text('actor = "found"')
    (folder / "other.toml").write_text('actor = "other"')
    assert load(environ={"REDRIVE_CONFIG": "other.toml"}).settings.actor == "other"
    assert load(environ={"REDRIVE_CONFIG": "redrive.toml"}, config="other.toml").settings.actor == "other"
    assert load(environ={"REDRIVE_CONFIG": os.devnull}).settings.actor is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.toml", "REDRIVE_CONFIG: no file nowhere.toml"),
        ("nowhere", "REDRIVE_CONFIG: no file nowhere"),
        ("redrive.ini", "REDRIVE_CONFIG: redrive.ini is neither TOML nor YAML"),
    ],
)
def test_a_named_file_must_be_there(folder: Path, path: str, said: str) -> None:
    (folder / "redrive.ini").touch()
    (fault,) = faults_of(REDRIVE_CONFIG=path)
    assert fault.startswith(said)


def test_two_files_in_one_folder_are_refused(folder: Path) -> None:
    (folder / "redrive.toml").touch()
    (folder / "redrive.yaml").touch()
    (fault,) = faults_of()
    assert fault == f"settings: {folder} has redrive.toml and redrive.yaml (keep one of them)"


def test_a_current_directory_that_is_gone_has_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    assert find() is None


# -- faults ------------------------------------------------------------------------------------------------------------


def test_all_faults_are_told_at_once_each_with_value_and_origin(folder: Path) -> None:
    file = folder / "redrive.toml"
    file.write_text('stoer = 1\nlog = 3\n[worker]\ngrace = "soon"\nprocesses = 0\nproceses = 2\n[workr]\ngrace = 1\n')
    faults = faults_of(REDRIVE_WORKER_CONCURRENCY="many", REDRIVE_LOG_LEVEL="loud")
    assert [fault.partition(":")[0] for fault in faults] == [
        "stoer",
        "log",
        "worker.proceses",
        "workr",
        "log.level",
        "worker.processes",
        "worker.concurrency",
        "worker.grace",
    ]
    told = "\n".join(faults)
    assert f"stoer: no such setting; did you mean store? (from {file})" in told
    assert "log: it is a section, with log.level, log.format" in told
    assert "worker.proceses: no such setting; did you mean worker.processes?" in told
    assert f"'soon' is not a duration: a number with a unit is missing at 'soon' (from {file}; use" in told
    assert f"worker.processes: 0 cannot be used (from {file}; use a whole number from 1 to 256)" in told
    assert "'loud' is none of them (from environment REDRIVE_LOG_LEVEL; use debug, info, warning, error)" in told


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("store", "5"),
        ("store", '""'),
        ("store", '"nope://x"'),
        ("store", f'"postgresql://shop:{SECRET}/@db/shop"'),
        ("store", f'"postgresql://shop:{SECRET}@db/shop?nope=1"'),
        ("store", f'["{SERVER}"]'),
        ("actor", '" "'),
        ("actor", '"a\\u001b[2J"'),
        ("actor", "7"),
        ("max_payload", '"1M"'),
        ("max_payload", "0"),
        ("max_payload", "true"),
        ("max_payload", "1.5"),
        ("release", "1.4"),
        ("release", '""'),
        ("log.level", "1"),
        ("log.format", '"xml"'),
        ("worker.processes", "257"),
        ("worker.processes", '"-1"'),
        ("worker.processes", "true"),
        ("worker.processes", '"٣"'),
        ("worker.concurrency", "10001"),
        ("worker.concurrency", f"{'9' * 400}"),
        ("worker.queues", "[]"),
        ("worker.queues", '","'),
        ("worker.queues", "[1]"),
        ("worker.queues", "{a = 1}"),
        ("worker.grace", "-1"),
        ("worker.grace", "1979-05-27"),
        ("worker.grace", "inf"),
        ("receipts.endpoint", '"broker.example"'),
        ("receipts.endpoint", '"ftp://broker.example"'),
        ("receipts.endpoint", '"http://[broker"'),
        ("receipts.endpoint", '"http://broker:99999"'),
        ("receipts.endpoint", f'"nope://ann:{SECRET}@broker"'),
        ("receipts.transport", '"smtp"'),
        ("encryption_keys", f'"{SECRET}"'),
        ("encryption_keys", f'"k1:{SECRET}"'),
        ("encryption_keys", f'["{SECRET}"]'),
        ("receipts.auth_token", '""'),
        ("receipts.auth_token", f'"Bearer {SECRET}"'),
        ("receipts.auth_token", f'["{SECRET}"]'),
        ("receipts.tenant", '" "'),
        ("receipts.queue", "1"),
        ("receipts.max_retries", "0"),
        ("receipts.backoff_base", "0"),
        ("receipts.backoff_base", "-2.0"),
        ("receipts.backoff_base", "inf"),
        ("receipts.backoff_base", "nan"),
        ("receipts.backoff_base", "true"),
        ("receipts.backoff_base", '"much"'),
        ("receipts.timeout", "0"),
        ("receipts.file", '""'),
        ("receipts.file", '"a\\u0000b"'),
        ("webhooks.http", '"8080"'),
        ("webhooks.http", '"a:65536"'),
        ("webhooks.http", f'"http://ann:{SECRET}@a:1"'),
        ("webhooks.max_body", "0"),
        ("webhooks.allow", '"lan"'),
        ("webhooks.allow", "7"),
        ("webhooks.retention", '"none"'),
        ("webhooks.concurrency", "0"),
    ],
)
def test_every_setting_refuses_what_it_cannot_use(setting: str, value: str, folder: Path) -> None:
    section, _, name = setting.rpartition(".")
    (folder / "redrive.toml").write_text(f"[{section}]\n{name} = {value}\n" if section else f"{name} = {value}\n")
    (fault,) = faults_of()
    assert fault.startswith((f"{setting}: ", f"{setting}.")) or setting == "store"
    assert "redrive.toml" in fault
    assert "\x1b" not in fault


def test_a_token_can_come_from_a_file_and_is_never_shown(folder: Path) -> None:
    (folder / "token").write_text(f"{SECRET}\n")
    loaded = load(environ={"REDRIVE_RECEIPTS_AUTH_TOKEN_FILE": "token"})
    assert loaded.settings.section(ReceiptSettings).auth_token == SECRET
    assert fields()["receipts.auth_token"].show(SECRET) == "…"


def test_a_wrong_flag_is_told_as_one() -> None:
    with pytest.raises(ConfigError, match=r"^--grace: 'soon' is not a duration") as raised:
        load(environ={}, flags={"worker.grace": "soon"})
    assert not isinstance(raised.value, BadSettings)
    with pytest.raises(BadSettings) as several:
        load(environ={}, flags={"worker.grace": "soon", "worker.processes": "x"})
    assert len(several.value.faults) == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("redrive.toml", f'store = "{SERVER}', "it is not TOML"),
        ("redrive.toml", f'store = "{SERVER}"\nstore = "memory:"', "it is not TOML"),
        ("redrive.yaml", f'store: "{SERVER}', "it is not YAML"),
        ("redrive.yaml", f'store: "{SERVER}"\nstore: "memory:"', "a name is there twice (at line 2, column 1)"),
        ("redrive.yaml", f"- {SERVER}", "it holds no settings"),
        ("redrive.yaml", f"!!python/object/apply:os.system ['echo {SECRET}']", "it is not YAML"),
        ("redrive.yaml", f"store: *{SECRET}", "it is not YAML: found undefined alias"),
        ("redrive.yaml", "a: &a [*a]", "it is not YAML"),
        ("redrive.yaml", "store: 2020-13-45", "it is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_quoted(name: str, text: str, said: str, folder: Path) -> None:
    (folder / name).write_text(text)
    assert said in "\n".join(faults_of())


def test_a_file_must_be_text_and_readable(folder: Path) -> None:
    (folder / "redrive.toml").write_bytes(b"\xff\xfe")
    (fault,) = faults_of()
    assert "it is not UTF-8" in fault


def test_an_empty_yaml_file_says_nothing(folder: Path) -> None:
    (folder / "redrive.yaml").write_text("# nothing yet\n")
    assert load(environ={}).settings == Settings()


def test_yaml_without_its_package_asks_for_it_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "redrive.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    (fault,) = faults_of()
    assert "pip install 'redrive[yaml]'" in fault


def test_a_variable_that_means_nothing_is_named() -> None:
    variables = {"REDRIVE_WORKER_GRACES": "1s", "REDRIVE_XYZZY": "", "REDRIVE_DEBUG": "1", "REDRIVE_ACTOR": "x"}
    assert unknown_variables(variables) == (
        "REDRIVE_WORKER_GRACES means nothing; did you mean REDRIVE_WORKER_GRACE?",
        "REDRIVE_XYZZY means nothing",
    )


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_secret_may_come_from_a_file(folder: Path) -> None:
    secret = folder / "store-url"
    secret.write_text(f"{SERVER}\n")
    loaded = load(environ={"REDRIVE_STORE_FILE": str(secret)})
    assert loaded.settings.store == SERVER
    assert loaded.origins["store"] == f"{secret} (environment REDRIVE_STORE_FILE)"


def test_faults_of_a_secret_file_name_the_file_alone(folder: Path) -> None:
    (folder / "empty").touch()
    (folder / "binary").write_bytes(b"\xff")
    (folder / "wrong").write_text(f"nope://shop:{SECRET}@db")
    for name, said in (
        ("nowhere", "No such file"),
        ("empty", "is empty"),
        ("binary", "not text"),
        ("wrong", "unknown"),
    ):
        (fault,) = faults_of(REDRIVE_STORE_FILE=str(folder / name))
        assert said in fault
        assert "REDRIVE_STORE_FILE" in fault
    (fault,) = faults_of(REDRIVE_STORE_FILE="x", REDRIVE_STORE=SERVER)
    assert "REDRIVE_STORE and REDRIVE_STORE_FILE are both there" in fault


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_encryption_keys_from_a_file_that_others_may_not_read(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    file = folder / "keys"
    file.write_text(
        "k2:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=\n\nk1: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
    )
    file.chmod(mode)
    keys = load(environ={"REDRIVE_ENCRYPTION_KEYS_FILE": str(file)}).settings.encryption_keys
    assert keys is not None
    assert keys.ids == ("k2", "k1")
    assert fields()["encryption_keys"].show(keys) == "k2, k1"
    assert ("can be read by other users" in caplog.text) is (mode == 0o644)


# -- alerts ------------------------------------------------------------------------------------------------------------


def test_what_names_its_store_takes_its_release_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def releases() -> list[str]:
        with open_mailbox("inbox", "sqlite:///box.db") as inbox:
            return [parts_of(Redrive("memory:")).release, inbox.shared.release]

    assert releases() == [""] * 2
    monkeypatch.setenv("REDRIVE_RELEASE", "1.4.2")
    assert releases() == ["1.4.2"] * 2
    assert (parts_of(Redrive()).release, parts_of(Redrive("memory:", release="2")).release) == ("1.4.2", "2")
    monkeypatch.setenv("REDRIVE_RELEASE", "a\nb")
    with pytest.raises(ConfigError, match=r"release: .* is not a release"):
        releases()
