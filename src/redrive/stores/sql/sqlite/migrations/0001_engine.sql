-- The engine: items, letters, their history, and what lies beside the queue.
-- Applied in one transaction. Every instant and duration is in whole milliseconds by the store's clock.

-- One row per declared queue with its kept counters. A write moves each counter at most once.
create table queue (
    name text primary key,
    ready integer not null default 0,
    leased integer not null default 0,
    done integer not null default 0,
    open integer not null default 0,
    archived integer not null default 0,
    trash integer not null default 0,
    cancelled integer not null default 0,
    paused integer not null default 0,
    paused_by text not null default '',
    paused_reason text not null default ''
) without rowid;

-- The last number given, so that a pruned item's number never comes again.
create table sequence (
    name text primary key,
    n integer not null
) without rowid;
insert into sequence (name, n) values ('item', 0);

-- Narrow on purpose: lease and settle rewrite this row and nothing else.
-- alone: 0 no, 1 the only lease of its worker, 2 the same but taken over from that worker.
create table item (
    seq integer primary key,
    id text not null,
    queue text not null,
    state text not null,
    enqueued_at integer not null,
    due_at integer not null,
    renewed_at integer not null,
    deliveries integer not null default 0,
    attempt integer not null default 0,
    errors integer not null default 0,
    crashes integer not null default 0,
    replays integer not null default 0,
    last_chance integer not null default 0,
    alone integer not null default 0,
    omitted integer not null default 0,
    worker text,
    leased_at integer,
    lease_until integer,
    ended_at integer
);
create unique index item_id on item (id);
-- By crashes first: a request draws its own line between plain items and suspects, and each level is in due order.
create index item_ready on item (queue, crashes, due_at) where state = 'ready';
create index item_leased on item (queue, lease_until) where state = 'leased';
create index item_alone on item (worker) where state = 'leased' and alone = 1;

-- Written once by put. crc is zlib's crc32 of the body.
create table payload (
    seq integer primary key,
    crc integer not null,
    body blob not null
);

create table result (
    seq integer primary key,
    body blob not null
);

-- error_short is the class without its module, by which people look for it.
-- One row per dead item; gone when it is replayed. Every index ends in died_at and, being a rowid, seq: the order of find.
create table letter (
    seq integer primary key,
    queue text not null,
    reason text not null,
    died_at integer not null,
    disposition text not null,
    cause text not null,
    error text not null,
    error_short text not null,
    category text not null,
    rule text not null,
    failure blob not null
);
create index letter_died on letter (died_at);
create index letter_disposition on letter (disposition, died_at);
create index letter_queue on letter (queue, disposition, died_at);
create index letter_cause on letter (cause, queue, disposition, died_at);
create index letter_error on letter (error_short, died_at);
create index letter_category on letter (category, died_at);

-- Open letters by cause; the row goes when the last one does.
create table cause (
    cause text not null,
    queue text not null,
    n integer not null,
    primary key (cause, queue)
) without rowid;
create index cause_n on cause (n);

create table attempt (
    seq integer not null,
    delivery integer not null,
    body blob not null,
    primary key (seq, delivery)
) without rowid;

create table journal (
    position integer primary key autoincrement,
    at integer not null,
    topic text not null,
    actor text not null,
    reason text not null,
    request_id text not null,
    change text not null,
    body blob not null
);
create index journal_topic on journal (topic);
create index journal_request on journal (request_id) where change <> '';

-- Which items an amend changed: their history, and the proof that a request changed them already.
create table deed (
    position integer not null,
    seq integer not null,
    primary key (position, seq)
) without rowid;
create index deed_seq on deed (seq);

create table tombstone (
    id text primary key,
    queue text not null,
    state text not null,
    payload_sha256 text not null,
    at integer not null,
    actor text not null,
    reason text not null
) without rowid;

-- What a worker's last lease request gave: [seq, delivery, seq, delivery, ...].
create table nonce (
    worker text primary key,
    nonce text not null,
    at integer not null,
    leases blob not null
) without rowid;

create table worker (
    name text primary key,
    facts blob not null,
    seen_at integer not null,
    alive_until integer not null
) without rowid;

create table election (
    name text primary key,
    owner text not null,
    until integer not null
) without rowid;

-- A deleted document keeps its row with body null: its versions go on from there.
create table document (
    kind text not null,
    key text not null,
    version integer not null,
    body blob,
    primary key (kind, key)
) without rowid;
