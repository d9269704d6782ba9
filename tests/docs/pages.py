"""The documents as the tests see them: pages, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
KILLING = frozenset({"docs/durability.md", "docs/failure.md"})
"""Pages whose examples kill processes: proofs/test_docs.py runs them."""
FILE_NAME = re.compile(r"# (?P<name>[a-z_]+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the first line inside the fence."""
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file this block is to be saved as, if its first line names one."""
        named = FILE_NAME.match(self.text)
        return None if named is None else named["name"]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def all_documents() -> list[Path]:
    return [*pages(), *sorted((ROOT / "docs" / "adr").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("body")) + 1, found["language"], found["body"])
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
