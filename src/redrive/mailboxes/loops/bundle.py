"""Debug bundles: a JSON file with all facts of one run."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from redrive.mailboxes import logs
from redrive.mailboxes.loops.runs import Run


def written(folder: str | os.PathLike[str] | None, run: Run, **parts: object) -> str | None:
    """Where it is; None if there is no folder for it, or it could not be written: the work counts all the same."""
    if folder is None:
        return None
    facts = {"context": run.context, "usage": run.usage, "expansions": run.expansions, "ended_at": run.now, **parts}
    path = Path(folder) / f"{run.context.request_id}-{run.context.run_id}.json"
    half = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(msgspec.json.format(msgspec.json.encode(facts, enc_hook=_shown), indent=2))
        half.replace(path)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        logs.say(logging.WARNING, "Debug bundle not written", path=path, error=logs.said(error))
        return None
    return str(path)


def _shown(value: Any) -> str:
    """Prompts and outputs may be anything."""
    return repr(value)
