-- The engine: items, letters, their history, and what lies beside the queue. `{schema}` is the name of the schema, quoted.
-- Applied in one transaction. Every instant and duration is in whole milliseconds by the server's clock.
-- Texts that are compared or ordered are collated "C": bytes, as Python compares them, whatever the database's locale.

create sequence {schema}.item_seq as bigint cache 1;

-- What was put, written once and never changed. crc is zlib's crc32 of the body, begun with the number of its packing
-- (0: the body as it was given; see stores/packing.py).
create table {schema}.item (
    seq bigint primary key,
    id text collate "C" not null,
    queue text collate "C" not null,
    enqueued_at bigint not null,
    crc bigint not null,
    packing smallint not null default 0,
    body bytea not null
);
create unique index item_id on {schema}.item (id);
-- Payloads are opaque and packed by us where it pays.
alter table {schema}.item alter column body set storage external;

-- How it goes with an item: narrow, because lease and settle write it anew each time.
-- alone: 0 no, 1 the only lease of its worker, 2 the same but taken over from that worker.
-- What extend changes (lease_until) is in no index, so that prolonging a lease stays within its page.
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
    ended_at bigint
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
-- By crashes first: a request draws its own line between plain items and suspects, and each level is in due order.
create index course_ready on {schema}.course (queue, crashes, due_at, seq) where state = 'ready';
create index course_leased on {schema}.course (queue) where state = 'leased';
-- Without the state: an index that could also answer by course_leased would be passed over for it, and that one keeps
-- an entry for all that was ever leased as long as anybody has an old snapshot.
create index course_alone on {schema}.course (worker) where alone = 1;

create table {schema}.result (
    seq bigint primary key,
    packing smallint not null default 0,
    body bytea not null
);
alter table {schema}.result alter column body set storage external;

-- One row per dead item; gone when it is replayed. Every index ends in died_at, seq: the order of find.
-- error_short is the class without its module, by which people look for it.
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
    failure bytea not null
);
create index letter_died on {schema}.letter (died_at, seq);
create index letter_disposition on {schema}.letter (disposition, died_at, seq);
create index letter_queue on {schema}.letter (queue, disposition, died_at, seq);
create index letter_cause on {schema}.letter (cause, disposition, died_at, seq);
create index letter_cause_queue on {schema}.letter (cause, queue, disposition, died_at, seq);
create index letter_error on {schema}.letter (error_short, disposition, died_at, seq);
create index letter_category on {schema}.letter (category, disposition, died_at, seq);

create table {schema}.attempt (
    seq bigint not null,
    delivery integer not null,
    body bytea not null,
    primary key (seq, delivery)
);

-- Settings of a queue. A queue is declared by a row here or by anything counted in it.
create table {schema}.queue (
    name text collate "C" primary key,
    paused boolean not null default false,
    paused_by text not null default '',
    paused_reason text not null default ''
);

-- Counters are never updated by the verbs: each write adds at most one row per queue (and per cause), reads sum them
-- up, and `fold` makes few of many. A row that everybody updates would put the whole fleet in a line.
create table {schema}.counter (
    queue text collate "C" not null,
    ready bigint not null default 0,
    leased bigint not null default 0,
    done bigint not null default 0,
    open bigint not null default 0,
    archived bigint not null default 0,
    trash bigint not null default 0,
    cancelled bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

create table {schema}.cause (
    cause text collate "C" not null,
    queue text collate "C" not null,
    n bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

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

-- Which items an amend changed: their history, and the proof that a request changed them already.
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

-- What a worker's last lease request gave: numbers of items and their deliveries.
create table {schema}.nonce (
    worker text collate "C" primary key,
    nonce text collate "C" not null,
    at bigint not null,
    seqs bigint[] not null,
    deliveries integer[] not null
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

-- A deleted document keeps its row with body null: its versions go on from there.
create table {schema}.document (
    kind text collate "C" not null,
    key text collate "C" not null,
    version bigint not null,
    body bytea,
    primary key (kind, key)
);
