-- The schema of a PostgreSQL store. `{schema}` is the quoted name of the schema. Applied in one transaction, together
-- with the functions (postgres/install.py). Instants and durations are whole milliseconds by the server's clock, unless
-- a comment says otherwise.
-- Texts that are compared or ordered have the collation "C": by bytes, as Python compares, in every locale.

create sequence {schema}.item_seq as bigint cache 1;

-- Written by put, and updated by an edit or by reencrypt alone. packing: 0 the body as given, 1 zlib behind a header,
-- 2 encrypted (stores/packing.py).
-- crc: CRC-32 of the stored bytes, with `packing` as its start value. release: of the program that put the item.
create table {schema}.item (
    seq bigint primary key,
    id text collate "C" not null,
    queue text collate "C" not null,
    enqueued_at bigint not null,
    crc bigint not null,
    packing smallint not null default 0,
    body bytea not null,
    release text collate "C" not null default ''
);
create unique index item_id on {schema}.item (id);
-- Bodies are opaque, and already compressed by the client where it pays: no second compression by the server.
alter table {schema}.item alter column body set storage external;

-- The state of an item, one row per row in `item`: narrow, because every lease and settle writes a new version of it.
-- alone: 0 no, 1 the only lease of its worker, 2 the same, but the lease expired and another worker took it over.
-- ended_at: for a letter in the trash, when it was discarded.
-- priority: 0 normal, 1 high, 2 low. hold: 0 none, 1 after, 2 order, 3 limit, 4 parked (core.terms.HOLDS).
-- ties: which tables to read when the item ends: the sum of the bits of core.terms, 64 if it has a row in `terms`,
-- and 512 if it was edited: a lease then reads its payload by a statement of its own (lease.sql).
-- level: core.lanes.level, stored by every write that changes what it is computed from. A generated column makes each
-- update of a row about half as expensive again.
-- kind: which handler of the queue it is for; '' for the usual one.
-- lease_until, which extend changes, is in no index: extending a lease is then a heap-only update.
create table {schema}.course (
    seq bigint primary key,
    queue text collate "C" not null,
    state text collate "C" not null,
    due_at bigint not null,
    renewed_at bigint not null,
    deliveries integer not null default 0,
    attempt integer not null default 0,
    errors integer not null default 0,
    crashes integer not null default 0,
    replays integer not null default 0,
    omitted integer not null default 0,
    last_chance boolean not null default false,
    alone smallint not null default 0,
    worker text collate "C",
    leased_at bigint,
    lease_until bigint,
    ended_at bigint,
    priority smallint not null default 0,
    hold smallint not null default 0,
    ties smallint not null default 0,
    level integer not null default 0,
    kind text collate "C" not null default ''
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
create index course_leased on {schema}.course (queue) where state = 'leased';
-- Without the state in its predicate: with it, the planner would prefer course_leased, which keeps an entry for every
-- past lease as long as an old snapshot is open.
create index course_alone on {schema}.course (worker) where alone = 1;
-- Items with a hold are apart, so that a lease never reads them. Then by kind and level, and each level in due order.
create index course_ready on {schema}.course (hold, queue, kind, level, due_at, seq) where state = 'ready';

-- Payloads as they were before each edit; number 0 is the one that was put. at, actor, reason: of the edit.
create table {schema}.revision (
    seq bigint not null,
    number integer not null,
    at bigint not null,
    actor text not null,
    reason text not null,
    body bytea not null,
    packing smallint not null,
    crc bigint not null,
    primary key (seq, number)
);
alter table {schema}.revision alter column body set storage external;

create table {schema}.result (
    seq bigint primary key,
    packing smallint not null default 0,
    body bytea not null
);
alter table {schema}.result alter column body set storage external;

-- The row type that lease, settle and reclaim return.
create type {schema}.given as (
    note smallint, seq bigint, id text, queue text, body bytea, crc bigint, packing smallint, enqueued_at bigint,
    due_at bigint, renewed_at bigint, deliveries integer, attempt integer, errors integer, crashes integer,
    replays integer, last_chance boolean, alone smallint, worker text, leased_at bigint, lease_until bigint,
    priority smallint, terms bytea, gap text, cancel text, kind text, release text
);

-- One row per dead item, deleted when the item is replayed. error_short: the class of the error without its module.
-- reserved: id of the replay that it is kept for.
-- The indexes serve searches by cause, error, category or route, with and without a queue, newest first. Each ends in
-- died_at, seq, which is the order of find.
create table {schema}.letter (
    seq bigint primary key,
    queue text collate "C" not null,
    reason text collate "C" not null,
    died_at bigint not null,
    disposition text collate "C" not null,
    cause text collate "C" not null,
    error text collate "C" not null,
    error_short text collate "C" not null,
    category text collate "C" not null,
    rule text collate "C" not null,
    failure bytea not null,
    route text collate "C" not null default '',
    reserved text collate "C" not null default ''
);
create index letter_died on {schema}.letter (died_at, seq);
create index letter_disposition on {schema}.letter (disposition, died_at, seq);
create index letter_queue on {schema}.letter (queue, disposition, died_at, seq);
create index letter_cause on {schema}.letter (cause, disposition, died_at, seq);
create index letter_cause_queue on {schema}.letter (cause, queue, disposition, died_at, seq);
create index letter_error on {schema}.letter (error_short, disposition, died_at, seq);
create index letter_category on {schema}.letter (category, disposition, died_at, seq);
create index letter_route on {schema}.letter (route, disposition, died_at, seq) where route <> '';
create index letter_reserved on {schema}.letter (reserved, died_at, seq) where reserved <> '';
create index letter_error_queue on {schema}.letter (error_short, queue, disposition, died_at, seq);
create index letter_category_queue on {schema}.letter (category, queue, disposition, died_at, seq);

-- The letter of a replayed item, as it was before the replay: valid while the item is ready and has as many deliveries.
-- A row that is not valid any more is never used, and deleted with its item. place, gap: those of `terms`; role: 1 if it
-- was the head of its order key, 2 if it was the gap.
create table {schema}.recall (
    seq bigint primary key,
    deliveries integer not null,
    due_at bigint not null,
    renewed_at bigint not null,
    attempt integer not null,
    errors integer not null,
    crashes integer not null,
    last_chance boolean not null,
    ended_at bigint,
    queue text collate "C" not null,
    reason text collate "C" not null,
    died_at bigint not null,
    disposition text collate "C" not null,
    cause text collate "C" not null,
    error text collate "C" not null,
    error_short text collate "C" not null,
    category text collate "C" not null,
    rule text collate "C" not null,
    failure bytea not null,
    route text collate "C" not null,
    place bigint not null,
    gap text collate "C" not null,
    role smallint not null
);

create table {schema}.attempt (
    seq bigint not null,
    delivery integer not null,
    body bytea not null,
    primary key (seq, delivery)
);

-- Tags of items. An item with tags has bit 128 in course.ties; this table is not read for the others.
create table {schema}.tag (
    tag text collate "C" not null,
    seq bigint not null,
    primary key (tag, seq)
);
create index tag_seq on {schema}.tag (seq);

-- The settings of a queue (core.verbs.QueueSettings). A queue is declared by a row here, or by a row in `counter`.
create table {schema}.queue (
    name text collate "C" primary key,
    paused boolean not null default false,
    paused_by text not null default '',
    paused_reason text not null default '',
    max_running bigint,
    max_per_key bigint,
    rate_count bigint,
    rate_per bigint,
    rate_burst bigint,
    capacity bigint,
    order_mode text collate "C",
    policy text not null default '',
    gate text collate "C" not null default '',
    keep bigint,
    keep_results bigint,
    retry_share double precision default 0.5,
    keep_trash bigint,
    encrypt boolean not null default false
);
-- What lease reads: an empty index as long as no queue has a limit.
create index queue_limited on {schema}.queue (name)
    where max_running is not null or max_per_key is not null or rate_count is not null or gate <> '';
create index queue_capacity on {schema}.queue (name) where capacity is not null;
-- What put and settle look into: empty as long as no queue is encrypted.
create index queue_encrypted on {schema}.queue (name) where encrypt;
-- What put reads: the families that have one.
create index queue_family_capacity on {schema}.queue (name) where capacity is not null and right(name, 2) = ':*';
create index queue_gate on {schema}.queue (gate) where gate <> '';

-- Deltas of counters: each write inserts at most one row per queue (and per cause), reads sum them up, and `fold`
-- merges them. A row that every write updates would serialize all clients.
create table {schema}.counter (
    queue text collate "C" not null,
    ready bigint not null default 0,
    leased bigint not null default 0,
    done bigint not null default 0,
    open bigint not null default 0,
    archived bigint not null default 0,
    trash bigint not null default 0,
    cancelled bigint not null default 0,
    held bigint not null default 0,
    parked bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- The same of members of declared families, of which there may be very many; `counter` has the sums of each family.
create table {schema}.member_counter (
    queue text collate "C" not null,
    ready bigint not null default 0,
    leased bigint not null default 0,
    done bigint not null default 0,
    open bigint not null default 0,
    archived bigint not null default 0,
    trash bigint not null default 0,
    cancelled bigint not null default 0,
    held bigint not null default 0,
    parked bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index member_counter_queue on {schema}.member_counter (queue);

-- Members whose counters may have many rows by now: `count_member` notes a sample of those that moved, `fold` empties it.
create table {schema}.member_moved (
    queue text collate "C" not null
);

-- Members of declared families that may have something to give, and from when on a lease shall look at them (0: now): too
-- early, never too late. Rows are only inserted and deleted; a member may have several. No index begins with the turn: where
-- statistics have most rows at 0, a lease would walk it through all that wait for later.
create table {schema}.agenda (
    turn bigint generated always as identity,
    family text collate "C" not null,
    queue text collate "C" not null,
    next_at bigint not null,
    primary key (queue, turn)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index agenda_next on {schema}.agenda (family, next_at, turn);

-- Deltas of the number of open letters.
create table {schema}.cause (
    cause text collate "C" not null,
    queue text collate "C" not null,
    n bigint not null,
    route text collate "C" not null default ''
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Routes with a capacity.
create table {schema}.route (
    name text collate "C" primary key,
    capacity bigint not null
);

create table {schema}.journal (
    position bigint generated always as identity primary key,
    at bigint not null,
    topic text collate "C" not null,
    actor text not null,
    reason text not null,
    request_id text collate "C" not null,
    change text collate "C" not null,
    body bytea not null
);
create index journal_topic on {schema}.journal (topic, position);
create index journal_request on {schema}.journal (request_id) where change <> '';

-- Which items a journal entry changed: the history of an item, and how a repeated request is recognized.
create table {schema}.deed (
    seq bigint not null,
    position bigint not null,
    primary key (seq, position)
);

create table {schema}.tombstone (
    id text collate "C" primary key,
    queue text collate "C" not null,
    state text collate "C" not null,
    payload_sha256 text not null,
    at bigint not null,
    actor text not null,
    reason text not null
);

-- The result of the last lease request of each worker's lane: sequence numbers and delivery numbers.
create table {schema}.nonce (
    worker text collate "C" not null,
    lane text collate "C" not null,
    nonce text collate "C" not null,
    at bigint not null,
    seqs bigint[] not null,
    deliveries integer[] not null,
    primary key (worker, lane)
) with (fillfactor = 50);

create table {schema}.worker (
    name text collate "C" primary key,
    facts bytea not null,
    seen_at bigint not null,
    alive_until bigint not null
) with (fillfactor = 50);

create table {schema}.election (
    name text collate "C" primary key,
    owner text collate "C" not null,
    until bigint not null
);

-- A deleted document keeps its row, with body null, so that its version numbers continue.
create table {schema}.document (
    kind text collate "C" not null,
    key text collate "C" not null,
    version bigint not null,
    body bytea,
    primary key (kind, key)
);

-- One row per item that has Terms (core.item), or was asked to cancel while it ran. body: the Terms as JSON.
-- queue: that of the item, so that lines and slots are found without reading it. place: position in the line of its
-- order key: a number of item_seq, taken while the line is locked, and kept when the line is deleted. gap: id of a dead
-- item of that key which it was allowed to pass. cancel: who asked for the cancellation, and why.
-- parked: the label under which it was parked last.
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
    cancel text not null default '',
    parked text not null default ''
);

-- The line of an order key. head: seq of the only item that may run, or null. waiting: number of items behind the head.
-- status: 0 flowing, 1 blocked, 2 parked. The row is locked by every write that assigns places, moves or counts items.
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

-- Unfulfilled dependencies. awaited is 0 for an item that was pruned without being done: it will never be fulfilled.
create table {schema}.edge (
    awaited bigint not null,
    waiting bigint not null,
    primary key (awaited, waiting)
);
create index edge_waiting on {schema}.edge (waiting);

-- Holders of dedupe keys: a live item, or a done one up to `until`, the end of the dedupe window.
create table {schema}.dedupe (
    scope text collate "C" not null,
    key text collate "C" not null,
    seq bigint not null,
    id text collate "C" not null,
    until bigint,
    primary key (scope, key)
);
create index dedupe_until on {schema}.dedupe (until);

-- Number of leased items per limit key.
create table {schema}.slot (
    queue text collate "C" not null,
    key text collate "C" not null,
    running bigint not null,
    primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Ready items that wait for a slot of their limit key.
create table {schema}.aside (
    queue text collate "C" not null,
    key text collate "C" not null,
    seq bigint not null,
    primary key (queue, key, seq)
);

-- State of a queue's rate limit, in microseconds (core.meters), and the row that leases of a limited queue lock. Not
-- the row in `queue`: a put into a queue with a capacity locks that one, possibly in a long transaction of the user,
-- and must not block the workers.
create table {schema}.pace (
    queue text collate "C" primary key,
    full_at bigint not null default 0
) with (fillfactor = 50);

-- The fields of core.verbs.Gate; times and intervals in microseconds.
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

-- Letters that were changed and have no number yet, in the order of `place`. Every write that makes, changes or ends a
-- letter inserts here; `changes` and `fold` empty it. id: of an item that was pruned, else null.
create table {schema}.unnumbered (
    place bigint generated always as identity,
    seq bigint not null,
    id text collate "C"
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- The number of the last change of each item that is or was a letter. A pruned item keeps its row, and its id here.
create table {schema}.change (
    seq bigint primary key,
    n bigint not null,
    id text collate "C"
);
create unique index change_n on {schema}.change (n);
