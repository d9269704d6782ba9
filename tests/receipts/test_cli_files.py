"""`redrive receipts export` and `import`: what goes into a file comes out of it, and nothing is taken in unsaid."""

from __future__ import annotations

import json

from redrive.cli.exits import Exit
from tests.receipts.test_cli import Shell, dead, shell
from tests.receipts.test_dead_letters import receipt
from tests.receipts.test_json import SEED, entry, written
from tests.support.broker import Broker, rpc_error
from tests.support.cli import on_sqlite, on_store

__all__ = ["on_store", "shell"]
pytestmark = on_sqlite


def test_r10_export_and_import_are_inverse(shell: Shell) -> None:
    dead(shell, "a", "b")
    told = shell("export", "receipts.json")
    assert (told.code, told.out) == (Exit.DONE, "")
    found = json.loads((shell.folder / "receipts.json").read_bytes())
    assert [sorted(each) for each in found] == [["attempts", "failed_at", "receipt"]] * 2
    assert [each["receipt"] for each in found] == [receipt("a"), receipt("b")]
    assert shell("export", "receipts.json").code == Exit.CONFLICT
    assert shell("export", "receipts.json", "--force").code == Exit.DONE
    other = ("--store", f"sqlite:///{shell.folder}/other.db")
    told = shell("import", "receipts.json", *other)
    assert (told.code, len(told.out.split()), told.err) == (Exit.DONE, 2, "took in 2\n")
    assert json.loads(shell("export", *other).out) == found
    told = shell("import", "receipts.json", *other)
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "took in 0, 2 were there already\n")


def test_export_and_import_keep_whose_a_receipt_is(shell: Shell, broker: Broker) -> None:
    for tenant in ("A", "B", ""):
        (letter,) = [receipt("a", summary=f"of {tenant}")]
        whose = ("--tenant", tenant) if tenant else ()
        broker.script(rpc_error("QUOTA_EXCEEDED"))
        assert shell("send", shell.file("one.json", letter), "--endpoint", broker.url, *whose).code == Exit.PARTLY
    ids = sorted(shell("list", "-q").out.split())
    shell("export", "receipts.json")
    found = json.loads((shell.folder / "receipts.json").read_bytes())
    assert [each["receipt"].get("tenant_id", "") for each in found] == ["A", "B", ""]
    other = ("--store", f"sqlite:///{shell.folder}/other.db")
    assert sorted(shell("import", "receipts.json", *other).out.split()) == ids
    assert [each["tenant_id"] for each in json.loads(shell("list", "--json", *other).out)["receipts"]].count(None) == 1
    assert json.loads(shell("show", "a", "--tenant", "B", "--json", *other).out)["receipt"]["summary"] == "of B"
    told = shell("send", "receipts.json", "--endpoint", broker.url)
    assert (told.code, told.err.count("it belongs to tenant")) == (Exit.USAGE, 2)
    assert shell("recover", "--endpoint", broker.url, *other).code == Exit.DONE
    said = {call.arguments["result"]["summary"]: call.arguments.get("tenant_id") for call in broker.calls[3:]}
    assert said == {"of A": "A", "of B": "B", "of ": None}
    assert sorted(broker.accepted) == ids


def test_a_dry_import_takes_in_nothing(shell: Shell) -> None:
    dead(shell)
    shell.file("receipts.json", SEED)
    assert shell("import", "receipts.json", "--dry-run").err == "would take in 1\n"
    assert shell("list", "-q").out == ""


def test_a_dry_import_into_a_store_that_is_not_there(shell: Shell) -> None:
    shell.file("receipts.json", SEED)
    told = shell("import", "receipts.json", "--dry-run")
    assert (told.code, len(told.out.split())) == (Exit.DONE, 1)
    assert told.err.endswith("an import would make it\nwould take in 1\n")
    assert not list(shell.folder.glob("*.db"))


def test_a_damaged_file_is_taken_in_as_far_as_it_can_be_read(shell: Shell) -> None:
    shell.file("receipts.json", written(entry("a"), entry("b"))[:-60])
    told = shell("import", "receipts.json")
    assert (told.code, len(told.out.split())) == (Exit.PARTLY, 1)
    assert "entry 2 (line 13): it cannot be read as JSON" in told.err
    (aside,) = shell.folder.glob("receipts.json.damaged-*")
    assert str(aside) in told.err


def test_what_can_never_be_sent_is_told_by_entry_and_not_taken_in(shell: Shell) -> None:
    dead(shell)
    shell.file("receipts.json", written(entry("a"), entry("b", receipt=receipt("b", "pending")), entry("c")))
    told = shell("import", "receipts.json", "--json")
    found = json.loads(told.out)
    assert (told.code, len(found["imported"])) == (Exit.PARTLY, 2)
    ((number, text),) = [(each["entry"], each["text"]) for each in found["faults"]]
    assert (number, text) == (
        2,
        "receipt: it cannot be sent: status must be running, complete or failed, got 'pending'",
    )
    assert "pending" not in shell("list").out
    assert "took in 0, 2 were there already, 1 could not be taken in\n" in shell("import", "receipts.json").err


def test_half_a_character_in_a_file_is_a_fault_of_its_entry(shell: Shell) -> None:
    dead(shell)
    shell.file(
        "receipts.json", written(entry("a"), entry("\ud800"), entry("c", receipt=receipt("c", summary="\udfff")))
    )
    told = shell("import", "receipts.json", "--json")
    found = json.loads(told.out)
    assert (told.code, len(found["imported"])) == (Exit.PARTLY, 1)
    assert [each["entry"] for each in found["faults"]] == [2, 3]
