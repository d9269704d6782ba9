"""Nothing that users can meet is missing from the documents, and nothing in them leads nowhere."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from pathlib import Path

import redrive
from bench.rows import chosen
from redrive import Redrive
from redrive.core import decide, outcome
from redrive.engine import outbox, runner, signals
from redrive.office.letters import Letters
from redrive.office.schedules import Schedules
from redrive.office.settings import GateOptions, QueueOptions
from redrive.stores import damage
from tests.docs.pages import ROOT, all_documents, blocks, name_of, pages, prose
from tests.docs.shell import commands as shell_commands
from tests.docs.tables import commands, error_classes, event_classes, verb_names

LINK = re.compile(r"(?<!\!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|TBD|WIP|lorem ipsum|coming soon|to be written)\b", re.IGNORECASE)
PRIVATE = re.compile(r"(?<![\w.])/(?:root|home|Users|work|tmp)/")


@functools.cache
def text_of_all() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in pages())


def public_methods(kind: type) -> list[str]:
    names = [
        name for name, value in inspect.getmembers(kind) if not name.startswith("_") and not isinstance(value, type)
    ]
    assert names, kind
    return names


def test_every_public_name_is_in_the_documents() -> None:
    names = {
        *redrive.__all__,
        *error_classes(),
        *(kind.__name__ for kind in event_classes()),
        *verb_names(),
        *public_methods(Redrive),
        *public_methods(Letters),
        *public_methods(Schedules),
        *inspect.signature(Redrive).parameters,
        *inspect.signature(Redrive.handler).parameters,
        *inspect.signature(Redrive.enqueue).parameters,
        *inspect.signature(Redrive.schedule).parameters,
        *QueueOptions.__annotations__,
        *GateOptions.__annotations__,
    }
    assert names - {"self"} <= set(re.findall(r"\w+", text_of_all()))


def test_every_command_is_in_the_documents_and_says_what_it_does() -> None:
    assert [path for path, command in commands() if not command.help or path not in text_of_all()] == []


def test_every_reason_to_die_is_explained() -> None:
    source = "\n".join(inspect.getsource(module) for module in (decide, outcome, runner, damage, signals, outbox))
    reasons = set(re.findall(r'ToDead\("(\w+)"', source))
    reasons |= set(re.findall(r'reason: str = "(\w+)"', source))
    reasons |= set(re.findall(r'Dead\(.*, "(\w+)"\)', source))
    reasons |= set(re.findall(r'letter_reason = "(\w+)"', source))
    reasons |= set(re.findall(r'_useless\(.*, "(\w+)"\)', source))
    reasons |= set(re.findall(r'return "(\w+)"', source))
    explained = set(re.findall(r"^\| `(\w+)` \|", prose(ROOT / "docs" / "failure.md"), re.MULTILINE))
    assert {"max_attempts", "payload", "handler", "ceiling", "damaged", "max_age"} <= reasons
    assert reasons <= explained


def test_commands_in_the_documents_exist() -> None:
    known = {path for path, _ in commands()} | {"redrive --version"}
    for page in pages():
        for block in blocks(page):
            for line in block.text.splitlines():
                command = line.removeprefix("$ ")
                if block.language in ("text", "console") and command.startswith("redrive "):
                    words = shlex.split(command)
                    assert any(words[: len(path.split())] == path.split() for path in known), f"{block.where}: {line}"


def test_what_the_readme_measures_can_be_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`make bench ROWS=([\w,-]+)`", readme)
    assert named
    for rows in named:
        assert chosen("sqlite", rows.split(","))


def test_console_blocks_have_commands() -> None:
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                assert list(shell_commands(block)), block.where


def test_links_lead_somewhere() -> None:
    links = [(page, found) for page in all_documents() for found in LINK.finditer(prose(page))]
    for page, found in links:
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("https://", "http://")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), (name_of(page), found["target"])
        assert file.is_relative_to(ROOT), (name_of(page), found["target"])
        if anchor:
            assert anchor in anchors(file), f"{found['target']}: there are {sorted(anchors(file))}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, signs dropped, blanks as hyphens."""
    titles = (found["title"] for found in HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_documents_are_finished_and_speak_of_redrive_alone() -> None:
    for page in all_documents():
        text = page.read_text(encoding="utf-8")
        assert not UNFINISHED.findall(text), name_of(page)
        assert not PRIVATE.findall(text), name_of(page)


def test_records_are_numbered_and_listed() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [int(record.name[:4]) for record in records]
    assert numbers == list(range(1, len(records) + 1))
    listed = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for number, record in zip(numbers, records, strict=True):
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ")
        assert [found["title"] for found in HEADING.finditer(text)][1:] == ["Context", "Decision", "Consequences"]
        assert f"(adr/{record.name})" in listed


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in pages():
        assert page.name == "README.md" or f"(docs/{page.name})" in readme
