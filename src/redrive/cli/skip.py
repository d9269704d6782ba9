"""`redrive letters skip`: let go on what waits behind a dead head."""

from __future__ import annotations

from redrive.cli.acts import Words
from redrive.cli.plain_acts import CHOOSING, plain_act
from redrive.core.verbs import Skip

ABOUT = f"""Let go on what waits behind dead letters under their order keys. The letters stay.

\b
Examples:
  redrive letters skip k3v9q2ma --reason 'customer 9 need not wait for it'
  redrive letters skip --where 'queue:payments key:cust-9' --reason INC-88 --dry-run

Whoever goes on is marked with the gap, which item show tells. To repair the letter and keep the order, replay it
instead; it then goes before the others. A letter that holds nobody up is skipped over, and named on stderr.
{CHOOSING}
"""
WORDS = Words(
    noun="letter",
    would_be="passed",
    question="Let go on what waits behind {count}?",
    would="would pass",
    done="passed",
    key="passed",
)

skip = plain_act("skip", ABOUT, Skip(), WORDS, lambda app, ids, why: app.letters.skip(ids, reason=why))
