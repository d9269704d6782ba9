-- What binds items to others: order keys, dedupe keys, dependencies, limits, gates, routes, and settings of queues.
-- Applied in one transaction. The functions are made anew after it: those whose arguments changed are dropped here.

drop function if exists {schema}.put(bigint, text[], text[], bigint[], bigint[], smallint[], bytea[]);
drop function if exists {schema}.levels(text, integer);
drop function if exists {schema}.hand_over(
    bigint, text, text, text, integer[], integer, bigint, smallint, bigint, bigint
);
drop function if exists {schema}.lease(
    bigint, text, text, bigint, text[], integer[], bigint[], integer[], bigint[], bigint[]
);
drop function if exists {schema}.settle(
    bigint, bigint[], text[], integer[], smallint[], bigint[], smallint[], integer[], smallint[], bytea[], integer[],
    bytea[], integer[], text[], text[], text[], text[], text[], text[], bytea[], integer[], text[], text[], bigint[],
    bigint[], smallint[], bytea[], text, text, bigint, text[], integer[], bigint[], integer[], bigint[], bigint[]
);
drop function if exists {schema}.keep_evidence(
    bigint, bigint[], integer[], integer[], integer[], smallint[], bytea[], integer[], bytea[], integer[], text[],
    text[], text[], text[], text[], text[], bytea[]
);
drop function if exists {schema}.extend(bigint, bigint[], text[], integer[], bigint);
drop function if exists {schema}.reclaim(bigint, text[], bigint, bigint, text[], boolean);

-- What lease, settle and reclaim say, row by row.
create type {schema}.given as (
    note smallint, seq bigint, id text, queue text, body bytea, crc bigint, packing smallint, enqueued_at bigint,
    due_at bigint, renewed_at bigint, deliveries integer, attempt integer, errors integer, crashes integer,
    replays integer, last_chance boolean, alone smallint, worker text, leased_at bigint, lease_until bigint,
    priority smallint, terms bytea, gap text, cancel text
);

-- hold: 0 none, 1 after, 2 order, 3 limit (core.terms.HOLDS). ties: where to look when it ends, the bits of core.terms;
-- and 64: it has a row in `terms`. 0 means that there is nothing to look up.
alter table {schema}.course
    add column priority smallint not null default 0,
    add column hold smallint not null default 0,
    add column ties smallint not null default 0,
    add column level integer not null default 0;
-- Not a generated column, which makes every update of a row half as dear again: whoever changes what it follows from
-- writes it, too (core.lanes.level).
update {schema}.course
set level = crashes * 6 + case when errors + crashes + replays > 0 then 3 else 0 end + priority
where errors + crashes + replays > 0;
drop index {schema}.course_ready;
-- What has a hold lies apart, so that a lease never passes it. By level then: a request draws its own lines between them,
-- and each is in due order.
create index course_ready on {schema}.course (hold, queue, level, due_at, seq) where state = 'ready';

-- One row per item that has any terms, or was asked to cancel while it ran. body: the terms as they were given. queue: as
-- the item says, so that lines and slots are found without a look at it. place: the last one that it was given, a number
-- of the items' sequence taken while the line was locked; it is kept when the line is forgotten.
create table {schema}.terms (
    seq bigint primary key,
    queue text collate "C" not null,
    order_key text collate "C" not null default '',
    place bigint not null default 0,
    limit_key text collate "C" not null default '',
    scope text collate "C" not null default '',
    dedupe_key text collate "C" not null default '',
    until bigint,
    after text[] collate "C" not null default '{}',
    dies boolean not null default false,
    body bytea,
    gap text collate "C" not null default '',
    cancel text not null default ''
);

-- The items of one order key. status: 0 flowing, 1 blocked, 2 parked. Whoever numbers, moves or counts holds its row.
create table {schema}.line (
    queue text collate "C" not null,
    key text collate "C" not null,
    head bigint,
    waiting bigint not null default 0,
    status smallint not null default 0,
    gap text collate "C" not null default '',
    primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create table {schema}.follower (
    queue text collate "C" not null,
    key text collate "C" not null,
    place bigint not null,
    seq bigint not null,
    primary key (queue, key, place)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Who waits for whom, until the awaited is done. 0 is one that was pruned and never will be.
create table {schema}.edge (
    awaited bigint not null,
    waiting bigint not null,
    primary key (awaited, waiting)
);
create index edge_waiting on {schema}.edge (waiting);

-- Who has a dedupe key: a live item, or one that is done, and then up to `until`.
create table {schema}.dedupe (
    scope text collate "C" not null,
    key text collate "C" not null,
    seq bigint not null,
    id text collate "C" not null,
    until bigint,
    primary key (scope, key)
);
create index dedupe_until on {schema}.dedupe (until);

-- How many of a limit key run, and which were set aside until one of them ends.
create table {schema}.slot (
    queue text collate "C" not null,
    key text collate "C" not null,
    running bigint not null,
    primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

create table {schema}.aside (
    queue text collate "C" not null,
    key text collate "C" not null,
    seq bigint not null,
    primary key (queue, key, seq)
);

alter table {schema}.queue
    add column max_running bigint,
    add column max_per_key bigint,
    add column rate_count bigint,
    add column rate_per bigint,
    add column rate_burst bigint,
    add column capacity bigint,
    add column order_mode text collate "C" not null default 'block',
    add column policy text not null default '',
    add column gate text collate "C" not null default '',
    add column keep bigint,
    add column keep_results bigint,
    add column retry_share double precision;
-- What leases look at, which is nothing where no queue is limited.
create index queue_limited on {schema}.queue (name)
    where max_running is not null or max_per_key is not null or rate_count is not null or gate <> '';
create index queue_capacity on {schema}.queue (name) where capacity is not null;

-- The meter of a queue's rate, and what leases of a limited queue wait for in turn. Not the queue's own row: a put in
-- somebody's open transaction holds that where the queue has a capacity, and must not keep the workers.
create table {schema}.pace (
    queue text collate "C" primary key,
    full_at bigint not null default 0
) with (fillfactor = 50);

create table {schema}.gate (
    name text collate "C" primary key,
    version bigint not null,
    interval bigint,
    burst bigint not null,
    share bigint,
    cap bigint not null,
    floor bigint not null,
    next_at bigint not null default 0,
    credit bigint not null default 0,
    floor_at bigint not null default 0,
    body bytea not null
) with (fillfactor = 50);

create table {schema}.route (
    name text collate "C" primary key,
    capacity bigint not null
);
alter table {schema}.letter add column route text collate "C" not null default '';
create index letter_route on {schema}.letter (route, disposition, died_at, seq) where route <> '';

alter table {schema}.counter
    add column held bigint not null default 0,
    add column parked bigint not null default 0;
alter table {schema}.cause add column route text collate "C" not null default '';
