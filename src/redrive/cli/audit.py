"""`redrive audit …`: what was done by whom and why, and whether it still says what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from redrive.cli.access import HELP_NAMES, json_option, limit_option, since_option, store_option, verbose_option, visit
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, brief, counted, iso, say, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.item import Instant, Millis, short_id
from redrive.core.redact import redact_text
from redrive.office.audit import RESERVING_ACTS, AuditCheck, AuditLine

if TYPE_CHECKING:
    from redrive.app import Redrive

audit = LazyGroup(
    "audit",
    {"list": "redrive.cli.audit:list_entries", "verify": "redrive.cli.audit:verify"},
    help="""The audit: what was done by whom and why.

\b
Examples:
  redrive audit list --since 1d
  redrive audit verify
""",
)

ABOUT_LIST = """List what was done, one line per request, the newest last.

\b
Examples:
  redrive audit list
  redrive audit list --since 1d --json
  redrive audit list --actor ann --limit 20

In a pipe the columns are POSITION AT ACTOR ACT COUNT REASON REQUEST ABOUT, separated by tabs. COUNT is how many items
the request changed, or how many things if it changed no item. Of several acts ACT names the main one first, and ABOUT
names some of what that one changed. A request may have many entries: POSITION and AT are those of the first. In JSON,
`acts` has the count of each act, and `changed` names the first 1,000.
"""
ABOUT_VERIFY = """Check that nobody changed, added or removed what was written.

\b
Examples:
  redrive audit verify
  redrive audit verify --known 39c44141a711ff0059c28ebe03be907e4ba42d11a32dbad1a1e7006daa998737

Every minute, and after every act, the new entries are sealed: each seal has their hash and that of the seal before it.
Whoever could write into the store could make all seals anew; note the last hash elsewhere now and then, and --known
says whether it is still among them. Exit 10 if something does not fit; entries that are not sealed yet are counted.
"""
SHOWN = 3


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@click.option("--actor", metavar="NAME", help="Only what this one did.")
@since_option("Only what was done within this long, as in 1d.")
@limit_option(100)
@list_options
@watch_option
@store_option
@verbose_option
def list_entries(
    *, actor: str | None, since: Millis | None, limit: int, shape: Shape, watch: int | None, store: str
) -> int:
    async def ask(app: Redrive) -> tuple[list[AuditLine], Instant]:
        now = (await app.tally(members=False)).at
        within = None if since is None else since / 1000
        return list(await app.audit.requests(limit, actor=actor, since=within)), now

    def draw(found: tuple[list[AuditLine], Instant]) -> None:
        lines, now = found
        listing: Listing[AuditLine] = Listing(
            key="position",
            as_object=_as_object,
            table=lambda rows: (["AT", "ACTOR", "ACT", "COUNT", "ABOUT", "REASON"], [_row(row, now) for row in rows]),
            line=_line,
            none="the audit is empty",
            kind=AuditLine,
        )
        show_list(listing, lines, shape)

    return look(store, ask, draw, watch)


def _as_object(line: AuditLine) -> dict[str, Any]:
    return {
        "position": line.position,
        "at": iso(line.at),
        "actor": line.actor,
        "act": line.act,
        "reason": redact_text(line.reason),
        "request_id": line.request_id,
        "count": line.count,
        "acts": line.acts,
        "changed": list(line.changed),
        "detail": line.detail,
        "entries": line.entries,
    }


def _about(line: AuditLine) -> str:
    more = line.acts.get(line.act, 0) - SHOWN
    return " ".join(short_id(one) for one in line.changed[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _acts(line: AuditLine) -> str:
    """Without those that go with a replay."""
    return ", ".join([line.act, *[act for act in line.acts if act not in (line.act, *RESERVING_ACTS)]])


def _row(line: AuditLine, now: Instant) -> list[str]:
    facts = [f"{brief(now - line.at)} ago", line.actor, _acts(line), str(line.count)]
    return [*facts, _about(line), redact_text(line.reason)]


def _line(line: AuditLine) -> list[str]:
    facts = [str(line.position), iso(line.at) or MISSING, line.actor, _acts(line), str(line.count)]
    return [*facts, redact_text(line.reason), line.request_id or MISSING, _about(line) or MISSING]


@click.command("verify", help=ABOUT_VERIFY, context_settings=HELP_NAMES)
@click.option("--known", metavar="HASH", help="A hash that was noted and must be among the seals.")
@json_option
@store_option
@verbose_option
def verify(*, known: str | None, as_json: bool, store: str) -> int:
    found = visit(store, lambda app: app.audit.verify(known=known))
    if as_json:
        write_json({"sound": found.sound, **msgspec.to_builtins(found)})
    else:
        _tell(found)
    return Exit.DONE if found.sound else Exit.UNSOUND


def _tell(found: AuditCheck) -> None:
    rest = "" if found.sound else "; what was sealed after them was not looked at"
    entries = f"{found.entries:,} {'entry' if found.entries == 1 else 'entries'} under {counted(found.seals, 'seal')}"
    unsealed = f"{found.unsealed:,} {'is' if found.unsealed == 1 else 'are'} not sealed yet"
    write(f"{entries} {'fits' if found.entries == 1 else 'fit'}{rest}; {unsealed}")
    if found.seals:
        write(f"hash of seal {found.seals:,}: {found.hash}")
    if not found.sound:
        say(found.fault)
    if found.missing:
        say(f"gone: {', '.join(map(str, found.missing[:20]))}")
