"""Every block of the documents runs: see "Documents" in CONTRIBUTING.md for the convention."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.addresses import Addresses
from tests.docs.pages import KILLING, ROOT, Block, blocks, name_of, pages
from tests.docs.shell import Shell, alike, plain
from tests.support.warm_python import WarmPython

LANGUAGES = {"python", "toml", "console", "text", "json", "mermaid"}


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[None]:
    """A page's own modules are forgotten after it: other tests may have some of the same name."""
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: None) -> Path:
    """Where a page's files are, and its commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if name_of(page) not in KILLING], ids=name_of)
async def test_the_blocks_of_a_page_run_in_order(page: Path, folder: Path, warm_python: WarmPython) -> None:
    await run_all(page, folder, warm_python)


async def run_all(page: Path, folder: Path, warm_python: WarmPython) -> None:
    with ExitStack() as stack:
        addresses = Addresses(stack)
        shell = Shell(folder, addresses, warm_python)
        names: dict[str, object] = {"__name__": "page"}
        for block in blocks(page):
            if block.language == "console":
                shell.run(block)
            elif block.language in ("python", "toml") and block.file_name is not None:
                (folder / block.file_name).write_text(addresses.real(block.text), encoding="utf-8")
            elif block.language == "python":
                await run(block, addresses.real(block.text), names)


async def run(block: Block, text: str, names: dict[str, object]) -> None:
    # Blank lines in front, so that a traceback names the line of the page.
    source = "\n" * (block.line - 1) + text
    code = compile(source, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)  # noqa: S307 - our own pages
    else:
        # Where no event loop runs: calls that block are refused in its thread.
        await asyncio.to_thread(eval, code, names)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_the_quick_start_of_the_readme_is_the_example() -> None:
    (block,) = [block for block in blocks(ROOT / "README.md") if block.file_name == "quickstart.py"]
    example = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert block.text == f"# quickstart.py\n{example}"


def test_outputs_are_compared_without_what_changes() -> None:
    assert plain("  done   12 ms  by w-1 ") == "done # ms by #"
    assert alike(["ready 1", "…", "end"], ["ready  2", "more", "", "end"])
    assert alike(["…"], [])
    assert not alike(["ready 1"], ["ready 1", "surprise"])
    assert not alike(["ready 1", "end"], ["ready 1"])
    assert not alike([], ["surprise"])
