"""Statistics of PostgreSQL's planner as they are wanted, and how many rows a search then looks at.

A plan that is good by luck is good by the statistics of the day. So a search is tried with those of other days: of when
all items were ready, of one queue, of no cause that is looked for, and so on. They are made in a schema beside, by the
server itself, and carried over. Both are on a server that makes none by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from redrive.core import codec, sizes
from redrive.core.select import Selection
from redrive.stores.bodies import Bodies
from redrive.stores.postgres import find
from redrive.stores.postgres.session import Session, Tx
from tests.stores.postgres_kit import failure, schema_of
from tests.support.servers import schemas, shared

Row = tuple[Any, ...]

MANY = 60_000
MADE = (
    "insert into item select g, md5(g::text), 'q' || g % 10, g, 0, 0, '' from generate_series(1, {many}) g",
    """
    insert into course (seq, queue, state, due_at, renewed_at, ended_at, ties)
    select g, 'q' || g % 10, 'dead', g, g, g, 128 from generate_series(1, {many}) g
    """,
    """
    insert into letter
    select g, case when g % 3 = 0 and g < 30000 then 'past' else 'q' || g % 10 end, 'max_attempts', g / 10,
           case when g % 9 = 0 then 'archived' else 'open' end,
           case when g < 500 then 'old' when g < 30000 then 'past' else 'c' || g % 100 end,
           'app.' || case when g < 30000 then 'Past' else 'E' || g % 20 end,
           case when g < 30000 then 'Past' else 'E' || g % 20 end,
           case when g < 500 then 'rare' when g < 30000 then 'past' else 'timeout' end, 'default', '{failure}',
           case when g % 2 = 0 and g < 30000 then 'past' when g % 2 = 0 then 'new' else '' end
    from generate_series(1, {many}) g
    """,
    "insert into tag select 'rare', g from (values (5), (77)) tagged (g)",
    "insert into tag select 'past', g from generate_series(1, 5000) g",
    "insert into tag select 'half', g from generate_series(2, {many}, 2) g",
    # And as many that are no letters: nearly all of them done, and what is live lies far from both ends.
    """
    insert into item select g, md5(g::text), 'q' || g % 10, g, 0, 0, ''
    from generate_series({many} + 1, 2 * {many}) g
    """,
    """
    insert into course (seq, queue, state, hold, due_at, renewed_at, ended_at, worker, leased_at, lease_until)
    select g, case when n < 2000 then 'idle' else 'q' || g % 10 end, state,
           case when state = 'ready' and n < 300 then n / 100 + 1 else 0 end, g, g,
           case when state in ('done', 'cancelled') then g end,
           case when state = 'ready' then null else 'w' || g % 3 end,
           case when state = 'leased' then g end, case when state = 'leased' then g end
    from (
        select g, g - {many} - {many} / 2 as n,
               case when g - {many} - {many} / 2 between 0 and 1799 then 'ready'
                    when g - {many} - {many} / 2 between 1800 and 2199 then 'leased'
                    when g % 7 = 0 then 'cancelled' else 'done' end as state
        from generate_series({many} + 1, 2 * {many}) g
    ) made
    """,
    """
    insert into terms (seq, queue, order_key)
    select seq, queue, 'k' || seq % 50 from course where hold = 2
    """,
    """
    insert into line (queue, key, waiting, status)
    select queue, order_key, count(*), case when order_key = 'k7' then 2 else 1 end from terms group by queue, order_key
    """,
    "update course set ties = 65 where hold = 2",
    "insert into tag select 'live', seq from course where state in ('ready', 'leased') and seq % 4 = 0",
    "update course set ties = ties | 128 where seq in (select seq from tag where tag = 'live')",
)
_FAILURE = f"\\x{codec.encode(failure()).hex()}"
TABLES = ("item", "course", "letter", "tag", "terms", "line", "result")
_ALIKE = (
    "update letter set cause = 'c7', error = 'app.E3', error_short = 'E3', category = 'timeout', route = 'new', "
    "queue = 'q3', disposition = 'open'"
)
_UNLIKE = (
    "update letter set cause = 'n' || seq, error = 'n' || seq, error_short = 'n' || seq, category = 'n' || seq, "
    "route = 'n' || seq, queue = 'n' || seq"
)
_LIVE = "update course set worker = 'w1', hold = {hold}, state = '{state}'"
_EMPTIED = tuple(f"delete from {table}" for table in TABLES)
THEN: dict[str, tuple[str, ...]] = {
    "when there were few": (),
    "when all were ready": (_LIVE.format(state="ready", hold=0),),
    "when all were held": (_LIVE.format(state="ready", hold=2),),
    "when all were leased": (_LIVE.format(state="leased", hold=0),),
    "when all were done": (_LIVE.format(state="done", hold=0), "truncate letter"),
    "when all letters were replayed": (f"analyze {', '.join(TABLES)}", "delete from letter"),
    "when all were of another queue": tuple(
        f"update {table} set queue = 'z'" for table in ("item", "course", "letter")
    ),
    "when all were of this queue": tuple(f"update {table} set queue = 'idle'" for table in ("item", "course")),
    "when all were archived": ("update letter set disposition = 'archived'",),
    "when all letters were alike": (_ALIKE,),
    "when no two letters were alike": (_UNLIKE,),
    "when none had a tag": ("delete from tag",),
    "when all had every tag": tuple(
        f"insert into tag select '{tag}', seq from course on conflict do nothing"
        for tag in ("rare", "past", "half", "live")
    ),
    "when it was empty": _EMPTIED,
    "when it was full, and when it was empty": (f"analyze {', '.join(TABLES)}", *_EMPTIED),
}
LOOKED = ("at all", "never", *THEN)
"""When the server made its statistics."""

_FORGET = """
    delete from pg_statistic where starelid in (
        select oid from pg_class where relnamespace in ((%(now)s)::regnamespace, (%(then)s)::regnamespace)
    )
"""
_UNKNOWN = """
    update pg_class set relpages = 0, reltuples = -1, relallvisible = 0
    where relnamespace in ((%(now)s)::regnamespace, (%(then)s)::regnamespace) and relkind in ('r', 'i')
"""
_SIZES = """
    update pg_class now set relpages = before.relpages, reltuples = before.reltuples
    from pg_class before
    where before.relname = now.relname and before.relnamespace = (%(then)s)::regnamespace
      and now.relnamespace = (%(now)s)::regnamespace and now.relkind in ('r', 'i')
"""
_OF_THEN = """
    select s.*, now.oid from pg_statistic s join pg_class before on before.oid = s.starelid
    join pg_class now on now.relname = before.relname and now.relnamespace = (%(now)s)::regnamespace
    where before.relnamespace = (%(then)s)::regnamespace
"""
_OF_LETTERS = """
    select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index join pg_class c on c.oid = indrelid
    where c.relnamespace = (%(now)s)::regnamespace and c.relname = 'letter' and not indisprimary order by indexrelid
"""
_BELIEVED = """
    select c.relname::text, c.relpages, c.reltuples, count(s.starelid), coalesce(sum(s.stadistinct), 0)
    from pg_class c left join pg_statistic s on s.starelid = c.oid
    where c.relnamespace = (%(now)s)::regnamespace and c.relkind in ('r', 'i')
    group by c.relname, c.relpages, c.reltuples order by c.relname
"""


@dataclass(frozen=True)
class Planned:
    """A store whose statistics are as they are told to be."""

    url: str
    then: str
    believed: list[Row] = field(default_factory=list)

    def believe(self, looked: str) -> None:
        """As if the server had made its statistics at that time, and not since."""
        names = {"now": schema_of(self.url), "then": schema_of(self.then)}
        with _admin() as connection:
            connection.execute(_FORGET.encode(), names)
            connection.execute(_UNKNOWN.encode(), names)
            if looked == "at all":
                _analyze(connection, self.url)
            elif looked != "never":
                _fill(connection, self.then, MANY // 10, THEN[looked])
                _analyze(connection, self.then)
                _carry(connection, names)
            self.believed[:] = _beliefs(connection, names)

    def still_believe(self) -> None:
        """Or else somebody made statistics meanwhile, and nothing is proved."""
        with _admin() as connection:
            now = _beliefs(connection, {"now": schema_of(self.url)})
        assert now == self.believed, "the statistics are not what they are meant to be"


@contextlib.contextmanager
def planned() -> Iterator[Planned]:
    with schemas.apart() as url, schemas.apart() as then:
        with _admin() as connection, _without_indexes(connection, url):
            _fill(connection, url, MANY)
        yield Planned(url, then)


def _admin() -> psycopg.Connection[Row]:
    return psycopg.connect(shared.postgres_apart().admin, autocommit=True)


def _beliefs(connection: psycopg.Connection[Row], names: dict[str, str]) -> list[Row]:
    return connection.execute(_BELIEVED.encode(), names).fetchall()


def _fill(connection: psycopg.Connection[Row], url: str, many: int, after: Sequence[str] = ()) -> None:
    _into(connection, url, [f"truncate {', '.join(TABLES)}", *MADE, *after], many)


@contextlib.contextmanager
def _without_indexes(connection: psycopg.Connection[Row], url: str) -> Iterator[None]:
    """Letters have ten of them: to make each at once is quicker than row by row."""
    indexes = connection.execute(_OF_LETTERS.encode(), {"now": schema_of(url)}).fetchall()
    for name, _ in indexes:
        connection.execute(f"drop index {name}".encode())
    yield
    for _, definition in indexes:
        connection.execute(definition.encode())


def _analyze(connection: psycopg.Connection[Row], url: str) -> None:
    _into(connection, url, [f"analyze {', '.join(TABLES)}"])


def _into(connection: psycopg.Connection[Row], url: str, statements: Sequence[str], many: int = 0) -> None:
    connection.execute(f"set search_path = {schema_of(url)}".encode())
    for statement in statements:
        connection.execute(statement.replace("{many}", str(many)).replace("{failure}", _FAILURE).encode())
    connection.execute(b"reset search_path")


def _carry(connection: psycopg.Connection[Row], names: dict[str, str]) -> None:
    """Also how many rows its tables had per page; how many pages there are, the planner sees for itself."""
    connection.execute(_SIZES.encode(), names)
    columns = connection.execute(
        b"select attname from pg_attribute where attrelid = 'pg_statistic'::regclass and attnum > 1 order by attnum"
    ).fetchall()
    listed = ", ".join(name for (name,) in columns)
    connection.execute(
        f"insert into pg_statistic (starelid, {listed}) select oid, {listed} from ({_OF_THEN}) s".encode(), names
    )


# --- counting ---------------------------------------------------------------------------------------------------------


_OF_PAGE = ("with found", "select 0::bigint as place")


@dataclass
class Looked:
    """Rows of all tables that were looked at: for the page, and before, to know where to look for it."""

    counts: list[int] = field(default_factory=list)

    @property
    def page(self) -> int:
        return self.counts[-1]

    @property
    def before(self) -> int:
        return sum(self.counts[:-1])


async def of_page(session: Session, monkeypatch: Any, selection: Selection, limit: int, *, oldest: bool) -> Looked:
    looked = Looked()
    with monkeypatch.context() as patched:
        patched.setattr(session, "page", _counting(session.page, looked))
        await find.find(session, Bodies(sizes.MAX), selection, limit, None, oldest=oldest)
    return looked


async def of_act(session: Session, selection: Selection, limit: int) -> Looked:
    """What amend and prune look at to find the first."""
    looked = Looked()

    async def work(tx: Tx) -> None:
        looked.counts.clear()
        counted: Any = _Counted(_counting(tx.execute, looked), _counting(tx.in_order, looked), tx.now)
        await find.oldest(session, counted, selection, limit)

    await session.write(work)
    return looked


@dataclass
class _Counted:
    execute: Callable[..., Awaitable[list[Row]]]
    in_order: Callable[..., Awaitable[list[Row]]]
    now: int


def _counting(ask: Callable[..., Awaitable[list[Row]]], looked: Looked) -> Callable[..., Awaitable[list[Row]]]:
    async def counted(statement: str, values: Sequence[Any] = (), **how: bool) -> list[Row]:
        ((plan,),) = await ask(f"explain (analyze, timing off, format json) {statement}", values, **how)
        looked.counts.append(rows_in(plan[0]["Plan"]))
        # What is on the page is of no interest, only what it takes; what is asked before it decides how to go on.
        return [] if statement.startswith(_OF_PAGE) else await ask(statement, values, **how)

    return counted


def rows_in(plan: dict[str, Any]) -> int:
    """Of all tables, with those that were looked at for nothing."""
    looked = 0
    if "Relation Name" in plan:
        kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        looked = round(sum(plan.get(kind, 0) for kind in kinds) * plan["Actual Loops"])
    return looked + sum(rows_in(part) for part in plan.get("Plans", ()))
