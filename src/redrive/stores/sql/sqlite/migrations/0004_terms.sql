-- Queue features: priorities, holds, and what binds items to others. Applied in one transaction.

-- priority: 0 normal, 1 high, 2 low. hold: core.terms.HOLDS by number. ties: the sum of core.terms, and 64 for "has a row
-- in terms". level: core.lanes.level; virtual, so that no write has to keep it.
alter table item add column priority integer not null default 0;
alter table item add column hold integer not null default 0;
alter table item add column ties integer not null default 0;
alter table item add column level integer
    generated always as (crashes * 6 + (errors + crashes + replays > 0) * 3 + priority) virtual;
drop index item_ready;
create index item_ready on item (queue, level, due_at) where state = 'ready' and hold = 0;

-- held and parked: counters as the others. settings: a QueueSettings, null for those of a new queue.
-- rate_at: the meter of its rate (core.meters).
alter table queue add column held integer not null default 0;
alter table queue add column parked integer not null default 0;
alter table queue add column settings blob;
alter table queue add column rate_at integer not null default 0;

-- Of items that have any: their Terms, the place in their line, the gap they were let past, and who wants them cancelled.
create table terms (
    seq integer primary key,
    body blob,
    order_key text not null default '',
    place integer,
    limit_key text not null default '',
    gap text not null default '',
    cancel text not null default ''
);
create index terms_key on terms (order_key) where order_key <> '';

-- The items of one order key. head: the number of the only one that may run, or null. waiting: how many follow it.
-- The key comes first in both indexes: queues are few, and a comparison that ends with the first column is a quick one.
create table line (
    queue text not null,
    key text not null,
    head integer,
    waiting integer not null default 0,
    status text not null default 'flowing',
    gap text not null default '',
    primary key (key, queue)
) without rowid;

create table follower (
    queue text not null,
    key text not null,
    place integer not null,
    seq integer not null,
    primary key (key, queue, place)
) without rowid;

-- Who waits for whom, until it is done. By id: the awaited one may be pruned. die: the waiting one dies with it.
create table edge (
    awaited text not null,
    waiting integer not null,
    die integer not null default 0,
    primary key (awaited, waiting)
) without rowid;
create index edge_waiting on edge (waiting);

-- Who holds a dedupe key; until: when its window is over, once the holder has ended.
create table dedupe (
    scope text not null,
    key text not null,
    seq integer not null,
    id text not null,
    until integer,
    primary key (scope, key)
) without rowid;
create index dedupe_until on dedupe (until) where until is not null;

-- How many leased items have a limit key, and those that were set aside for it.
create table slot (
    queue text not null,
    key text not null,
    running integer not null,
    primary key (queue, key)
) without rowid;

create table aside (
    queue text not null,
    key text not null,
    seq integer not null,
    primary key (queue, key, seq)
) without rowid;

-- Open letters of each route that has a name, and how many it has room for.
create table route (
    name text primary key,
    open integer not null default 0,
    capacity integer
) without rowid;

alter table letter add column route text not null default '';
create index letter_route on letter (route, disposition, died_at);

-- The columns of core.verbs.Gate.
create table gate (
    name text primary key,
    version integer not null,
    interval integer,
    burst integer not null,
    share integer,
    cap integer not null,
    floor integer not null,
    next_at integer not null default 0,
    credit integer not null default 0,
    floor_at integer not null default 0,
    body blob not null
) without rowid;
