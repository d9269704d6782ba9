"""`redrive letters archive`, `discard`, `restore` and `skip`: the acts that need only a reason."""

from __future__ import annotations

from redrive.cli.bulk import CHOOSING, Words, plain_act
from redrive.core.acts import (
    Archive,
    Discard,
    Restore,
    Skip,
)

ABOUT_ARCHIVE = f"""Put letters away: kept for good, out of the open list, and still replayable.

\b
Examples:
  redrive letters archive k3v9q2ma --reason 'known, and harmless'
  redrive letters archive --where 'cause:41fa* died>7d' --reason stale
  redrive letters list --where 'queue:payments' --all -q | redrive letters archive - --yes --reason stale

{CHOOSING}
"""
ABOUT_DISCARD = """Throw letters into the trash. They can be restored until the trash of their queue is emptied.

\b
Examples:
  redrive letters discard k3v9q2ma --reason 'a test of mine'
  redrive letters discard --where 'queue:emails tag:spam' --reason spam --dry-run
  redrive letters restore k3v9q2ma --reason 'it was none'

It asks first, however few they are; without a terminal say --yes. What waits behind them under an order key goes on.
How long the trash is held is `redrive queue set QUEUE --keep-trash`, 30 days unless it is said.
ID may be a unique prefix; - reads ids from stdin, one a line. If one of them is not found, nothing is done.
In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were.
"""
ABOUT_RESTORE = f"""Bring letters back from the archive or the trash: they are open again.

\b
Examples:
  redrive letters restore k3v9q2ma --reason 'not spam after all'
  redrive letters restore --where 'queue:emails disposition:trash' --reason 'wrong filter' --yes

--where and --view look among what was put away, unless the filter names a disposition.
{CHOOSING}
"""
ABOUT_SKIP = f"""Let go on what waits behind dead letters under their order keys. The letters stay.

\b
Examples:
  redrive letters skip k3v9q2ma --reason 'customer 9 need not wait for it'
  redrive letters skip --where 'queue:payments key:cust-9' --reason INC-88 --dry-run

Whoever goes on is marked with the gap, which item show tells. To repair the letter and keep the order, replay it
instead; it then goes before the others. A letter that holds nobody up is skipped over, and named on stderr.
{CHOOSING}
"""

archive = plain_act(
    "archive",
    ABOUT_ARCHIVE,
    Archive(),
    Words("archived", "Archive {count}?", "would archive"),
    lambda app, ids, how: app.letters.archive(ids, reason=how.reason, request_id=how.request),
)
discard = plain_act(
    "discard",
    ABOUT_DISCARD,
    Discard(),
    Words("discarded", "Discard {count}? They can be restored until the trash is emptied.", "would discard"),
    lambda app, ids, how: app.letters.discard(ids, reason=how.reason, request_id=how.request),
    ask_above=0,
)
restore = plain_act(
    "restore",
    ABOUT_RESTORE,
    Restore(),
    Words("restored", "Restore {count}?", "would restore"),
    lambda app, ids, how: app.letters.restore(ids, reason=how.reason, request_id=how.request),
)
skip = plain_act(
    "skip",
    ABOUT_SKIP,
    Skip(),
    Words("passed", "Let go on what waits behind {count}?", "would pass"),
    lambda app, ids, how: app.letters.skip(ids, reason=how.reason, request_id=how.request),
)
