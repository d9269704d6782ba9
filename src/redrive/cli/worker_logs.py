"""How worker processes and their supervisor log: to stderr, one line each, harmless to a terminal."""

from __future__ import annotations

import json
import logging
import sys

from redrive.cli.output import as_json, clean, iso

logger = logging.getLogger("redrive.cli")


class PlainFormatter(logging.Formatter):
    """One line, and nothing in it that speaks to a terminal; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{iso(int(record.created * 1000))} {record.levelname:<7} {record.name}: {clean(record.getMessage())}"
        return f"{head}\n{clean(self.formatException(record.exc_info), keep=chr(10))}" if record.exc_info else head


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"at": iso(int(record.created * 1000)), "level": record.levelname.lower(), "logger": record.name}
        fields["message"] = record.getMessage()
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        told = getattr(record, "redrive", None)
        if isinstance(told, dict):
            # Twice through JSON: what a subscriber put there need not be JSON, and a log line must not raise.
            fields |= json.loads(json.dumps(told, default=str))
        return as_json(fields, indent=None)


def set_up_logging(*, debug: bool, level: str = "info", format: str = "text") -> None:
    """To stderr. An app that has set up logging of its own keeps it; our own words reach stderr all the same."""
    least = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else PlainFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    # That it stops, and why, is said whatever the level.
    logger.setLevel(min(least, logging.WARNING))
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(least)
    if debug:
        logging.getLogger("redrive").setLevel(logging.DEBUG)
