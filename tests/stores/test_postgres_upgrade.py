"""A schema that an earlier release made, with items in every state, goes on under this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive.core import codec
from redrive.core.decide import Charge, ToDead, ToDone
from redrive.core.item import Failure, NewItem, Priority, Terms
from redrive.core.select import EVERYTHING, And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    TRASH_KEPT,
    Cancel,
    Held,
    LeaseRequest,
    Move,
    QueueChange,
    QueueSettings,
    Replay,
    RouteTally,
    Settlement,
    Skipped,
    Tag,
    Verdict,
    Want,
)
from redrive.stores import migrate
from redrive.stores.checks import KEEPS_BACK
from redrive.stores.statements import load
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open
from tests.stores.postgres_kit import act, execute, rows, schema_of

WHY = Failure("app.Broken", "it broke", "error", "default", "c1")
CRC = 2745614147
"""Of the body {}."""
STATES = (
    "(1, 'plain', 'ready', 0, 0, 0, 0, null, null, null, null)",
    "(2, 'retried', 'ready', 1, 1, 0, 0, 'w', 5, null, null)",
    "(3, 'crashed', 'ready', 2, 0, 2, 0, 'w', 5, null, null)",
    "(4, 'replayed', 'ready', 1, 0, 0, 1, 'w', 5, null, null)",
    "(5, 'running', 'leased', 1, 0, 0, 0, 'w', 5, 4102444800000, null)",
    "(6, 'finished', 'done', 1, 0, 0, 0, 'w', 5, null, 9)",
    "(7, 'ended', 'cancelled', 0, 0, 0, 0, null, null, null, 9)",
    "(8, 'died', 'dead', 1, 1, 0, 0, 'w', 5, null, 9)",
    "(9, 'shelved', 'dead', 1, 1, 0, 0, 'w', 5, null, 9)",
    "(10, 'binned', 'dead', 1, 1, 0, 0, 'w', 5, null, 9)",
)
OLD_FUNCTION = """
create function lease(
    pinned bigint, who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
    lines integer[], floor_dues bigint[], floor_seqs bigint[]
) returns table (note smallint) language sql as 'select 0::smallint'
"""


def _letters() -> Iterator[str]:
    body = f"'\\x{codec.encode(WHY).hex()}'"
    for seq, where in ((8, "open"), (9, "archived"), (10, "trash")):
        names = "'c1', 'app.Broken', 'Broken', 'error', 'default'"
        yield f"insert into letter values ({seq}, 'q', 'max_attempts', 9, '{where}', {names}, {body})"


FIRST, SECOND, THIRD = migrate.known("postgres")[:3]
OPENING = load("postgres", "open")
OF_SCHEMA_2 = "create function lock_lines(seqs bigint[]) returns void language sql as 'select null'"
BOUND = (
    f"insert into item select seq, id, 'q', 1, {CRC}, 0, '{{}}' from (values (11, 'head'), (12, 'behind')) o (seq, id)",
    """
    insert into course (seq, queue, state, due_at, renewed_at, ended_at, hold, ties)
    values (11, 'q', 'dead', 1, 1, 9, 0, 65), (12, 'q', 'ready', 1, 1, null, 2, 65)
    """,
    """
    insert into terms (seq, queue, order_key, place, body)
    select seq, 'q', 'k', seq + 10, '{"order_key":"k"}' from (values (11), (12)) o (seq)
    """,
    "insert into line values ('q', 'k', 11, 1, 1, '')",
    "insert into follower values ('q', 'k', 22, 12)",
    """
    insert into letter
    select 11, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure, route
    from letter where seq = 8
    """,
    "select setval('item_seq', 22)",
    "insert into counter (queue, held, open) values ('q', 1, 1)",
    "insert into cause values ('c1', 'q', 1, '')",
)
"""Added by schema 2: a dead head of an order key, and one behind it."""


@pytest.fixture
async def old(unused: str) -> str:
    """As schema 1 left it."""
    quoted, first = f'"{schema_of(unused)}"', FIRST
    sql = {name: text.replace("{schema}", quoted) for name, text in OPENING.items()}
    states = ", ".join(STATES)
    await execute(
        unused,
        sql["create_schema"],
        sql["create_migration"],
        first.text.replace("{schema}", quoted),
        f"insert into migration values (1, '{first.checksum}', 0)",
        OLD_FUNCTION,
        f"""
        insert into item
        select seq, id, 'q', 1, {CRC}, 0, '{{}}' from (values {states})
            as o (seq, id, state, attempt, errors, crashes, replays, worker, leased_at, lease_until, ended_at)
        """,
        f"""
        insert into course (seq, queue, state, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
                            worker, leased_at, lease_until, ended_at)
        select seq, 'q', state, seq, 1, attempt, attempt, errors, crashes, replays, worker, leased_at,
               lease_until::bigint, ended_at::bigint
        from (values {states})
            as o (seq, id, state, attempt, errors, crashes, replays, worker, leased_at, lease_until, ended_at)
        """,
        *_letters(),
        "select setval('item_seq', 10)",
        "insert into counter values ('q', 4, 1, 1, 1, 1, 1, 1)",
        "insert into cause values ('c1', 'q', 1)",
        "insert into queue values ('q', false, '', ''), ('shut', true, 'ada', 'holidays')",
    )
    return unused


@pytest.fixture
async def second(old: str) -> str:
    """As schema 2 left it."""
    text = SECOND.text.replace("{schema}", f'"{schema_of(old)}"')
    await execute(old, text, f"insert into migration values (2, '{SECOND.checksum}', 0)", OF_SCHEMA_2, *BOUND)
    return old


@pytest.fixture
async def third(second: str) -> str:
    """As schema 3 left it."""
    text = THIRD.text.replace("{schema}", f'"{schema_of(second)}"')
    await execute(second, text, f"insert into migration values (3, '{THIRD.checksum}', 0)")
    return second


async def test_an_older_schema_is_brought_up_to_date_with_all_it_holds(old: str, opened: Open) -> None:
    store = await opened(where=old)
    assert store.info().schema == 5
    assert (await store.check()).findings == ()
    assert await rows(old, "select number from migration order by number") == [(1,), (2,), (3,), (4,), (5,)]
    assert await rows(old, "select count(*) from pg_proc where proname = 'lease' and pronargs = 10") == [(0,)]
    queues = {row.queue: row for row in (await store.tally()).queues}
    counts = queues["q"]
    assert (counts.ready, counts.held, counts.parked, counts.leased, counts.done) == (4, 0, 0, 1, 1)
    assert (counts.open, counts.archived, counts.trash, counts.cancelled, counts.oldest_due) == (1, 1, 1, 1, 1)
    assert (queues["shut"].paused_by, queues["shut"].settings) == ("ada", QueueSettings())
    assert (await store.tally()).routes == (RouteTally("", 1),)
    found = {item.id: item for item in (await store.find(EVERYTHING)).items}
    assert {(item.hold, item.gap, item.cancel, item.terms) for item in found.values()} == {("", "", "", None)}
    assert {item.priority for item in found.values()} == {Priority.NORMAL}
    letter = found["died"].letter
    assert letter is not None
    assert (letter.failure, letter.route) == (WHY, "")


async def test_what_an_older_schema_held_goes_its_way(old: str, opened: Open) -> None:
    store = await opened(where=old)
    alone = LeaseRequest("lone", (Want("q", 10, 30_000, 3),), "n0")
    assert [item.id for item in (await store.lease(alone)).items] == ["crashed"]
    given = (await store.lease(LeaseRequest("w2", (Want("q", 10, 30_000, 3),), "n1"))).items
    assert [item.id for item in given] == ["plain", "retried", "replayed"]
    running = Settlement("running", 1, ToDone())
    ends = [Settlement(item.id, item.deliveries, ToDone()) for item in given[:1]]
    dead = Settlement("retried", given[1].deliveries, ToDead("rule", Charge.ERROR, WHY, "bad"))
    answers = (await store.settle([running, *ends, dead])).answers
    assert [answer.verdict for answer in answers] == [Verdict.APPLIED] * 3
    assert (await store.amend(Ids(("died",)), Replay(), act())).changed == ("died",)
    assert (await store.amend(Ids(("replayed",)), Cancel(), act("r-2"))).changed == ("replayed",)
    assert (await store.extend([Held("replayed", given[2].deliveries)], 60_000)).cancel_requested == ("replayed",)
    await store.put([NewItem(f"k-{n}", "q", b"{}", terms=Terms(order_key="k", after=("running",))) for n in range(2)])
    assert [item.hold for item in (await store.find(Match("queue", "=", "q"), 2)).items] == ["order", ""]
    await store.configure("q", QueueChange(max_running=5))
    assert (await store.get("died")).item.state is State.READY
    assert (await store.check()).findings == ()


async def test_what_schema_2_held_goes_its_way(second: str, opened: Open) -> None:
    store = await opened(where=second)
    assert store.info().schema == 5
    assert (await store.check()).findings == ()
    waiting = (await store.get("behind")).blocked_by
    moved = await store.amend(Ids(("head", "shelved")), Move("r"), act())
    assert (waiting, moved.changed) == (("head",), ("shelved",))
    assert moved.skipped == (Skipped("head", KEEPS_BACK),)
    tagged = await store.amend(Ids(("plain", "behind", "died")), Tag(add=("seen",)), act("r-2"))
    assert tagged.changed == ("plain", "behind", "died")
    assert (await store.amend(Ids(("head",)), Replay(), act("r-3"))).changed == ("head",)
    given = (await store.lease(LeaseRequest("w", (Want("q", 10, 30_000, 9),), "n"))).items
    assert {item.id: item.tags for item in given if item.id in {"plain", "head"}} == {"plain": ("seen",), "head": ()}
    assert (await store.check()).findings == ()


async def test_letters_of_schema_3_are_found_by_what_schema_4_has_an_index_for(third: str, opened: Open) -> None:
    store = await opened(where=third)
    assert store.info().schema == 5
    assert (await store.check()).findings == ()
    where = (Match("disposition", "=", "open"), Match("queue", "=", "q"))
    for name in (Match("error", "=", "Broken"), Match("category", "=", "error")):
        assert {item.id for item in await store.find(And((*where, name)))} == {"died", "head"}
        assert (await store.find(And((*where[:1], Match("queue", "=", "r"), name)))).items == ()


async def test_schema_5_brings_the_functions_of_this_release(unused: str, opened: Open) -> None:
    await (await opened(where=unused)).close()
    functions = "select proname, md5(string_agg(prosrc, '' order by prosrc)) from pg_proc p, pg_namespace n"
    functions += f" where pronamespace = n.oid and nspname = '{schema_of(unused)}' group by proname order by proname"
    ours = await rows(unused, functions)
    older = "create or replace function elect(pinned bigint, what text, who text, ttl bigint) returns boolean"
    await execute(unused, "delete from migration where number = 5", f"{older} language sql as 'select false'")
    assert await rows(unused, functions) != ours
    assert (await opened(where=unused)).info().schema == 5
    assert await rows(unused, functions) == ours


async def test_what_lay_in_the_trash_before_there_was_a_term_is_kept_for_one(old: str, opened: Open) -> None:
    store = await opened(where=old)
    ((now,),) = await rows(old, "select now_ms(null)")
    binned = (await store.get("binned")).item.ended_at or 0
    assert now - 60_000 < binned <= now
    assert (await store.get("shelved")).item.ended_at == 9
    assert (await store.settings("q")).keep_trash == TRASH_KEPT
    await store.sweep(100, act("sweep"))
    assert (await store.get("binned")).item.letter is not None
