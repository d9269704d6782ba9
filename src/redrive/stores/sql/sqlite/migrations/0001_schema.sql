-- The schema of a SQLite store. Applied in one transaction. Instants and durations are whole milliseconds by the
-- store's clock, unless a comment says otherwise.

-- One row per declared queue. Counters (ready to cancelled, held, parked): a write changes each at most once.
-- settings: QueueSettings as JSON, null for the defaults. rate_at: state of the queue's rate limit, in microseconds
-- (core.meters).
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
    paused_reason text not null default '',
    held integer not null default 0,
    parked integer not null default 0,
    settings blob,
    rate_at integer not null default 0
) without rowid;

-- The queues behind a gate, of those that have settings.
create index queue_gate on queue (json_extract(cast(settings as text), '$.gate')) where settings is not null;

-- Members of declared families that may have something to give, and from when on a lease shall look at them: too early,
-- never too late. A row of `queue` whose name is a pattern is a family; its counters are the sums of those of its
-- members.
create table agenda (
    turn integer primary key,
    family text not null,
    queue text not null unique,
    next_at integer not null
);
create index agenda_next on agenda (family, next_at, turn);

-- The last assigned numbers, of items and of changes of letters: those of pruned items are never assigned again.
create table sequence (
    name text primary key,
    n integer not null
) without rowid;
insert into sequence (name, n) values ('item', 0), ('change', 0);

-- The state of an item, without its bodies: lease and settle rewrite this row and no other.
-- alone: 0 no, 1 the only lease of its worker, 2 the same, but the lease expired and another worker took it over.
-- ended_at: for a letter in the trash, when it was discarded.
-- priority: 0 normal, 1 high, 2 low. hold: 0 none, 1 after, 2 order, 3 limit, 4 parked (core.terms.HOLDS).
-- ties: which tables to read when the item ends: the sum of the bits of core.terms, and 64 if it has a row in `terms`.
-- kind: which handler of the queue it is for; '' for the usual one.
-- level: core.lanes.level; virtual, so that no write stores it.
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
    ended_at integer,
    priority integer not null default 0,
    hold integer not null default 0,
    ties integer not null default 0,
    kind text not null default '',
    level integer generated always as (crashes * 6 + (errors + crashes + replays > 0) * 3 + priority) virtual
);
create unique index item_id on item (id);
create index item_leased on item (queue, lease_until) where state = 'leased';
create index item_alone on item (worker) where state = 'leased' and alone = 1;
-- By kind and level, then in due order: a lease reads those that it may take from, each in order.
create index item_ready on item (queue, kind, level, due_at) where state = 'ready' and hold = 0;
create index item_parked on item (queue) where hold = 4;

-- Written by put, and replaced by an edit or by reencrypt. packing: 0 the body as given, 1 zlib behind a header, 2 encrypted
-- (stores/packing.py).
-- crc: CRC-32 of the stored bytes, with `packing` as its start value.
-- release: of the program that put the item; before the body, so that reading it does not read a long body.
create table payload (
    seq integer primary key,
    crc integer not null,
    release text not null default '',
    body blob not null,
    packing integer not null default 0
);

-- Payloads as they were before each edit; number 0 is the one that was put. at, actor, reason: of the edit.
create table revision (
    seq integer not null,
    number integer not null,
    at integer not null,
    actor text not null,
    reason text not null,
    body blob not null,
    packing integer not null,
    crc integer not null,
    primary key (seq, number)
);

create table result (
    seq integer primary key,
    body blob not null,
    packing integer not null default 0
);

-- One row per dead item, deleted when the item is replayed. error_short: the class of the error without its module.
-- reserved: id of the replay that it is kept for.
-- The indexes serve searches by cause, error, category or route, with and without a queue, newest first. Each ends in
-- died_at and the rowid, which is the order of find. A search always names a disposition, so it precedes died_at; a
-- queue between the two would break the order.
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
    failure blob not null,
    route text not null default '',
    reserved text not null default ''
);
create index letter_died on letter (died_at);
create index letter_disposition on letter (disposition, died_at);
create index letter_queue on letter (queue, disposition, died_at);
create index letter_cause on letter (cause, disposition, died_at);
create index letter_cause_queue on letter (cause, queue, disposition, died_at);
create index letter_error on letter (error_short, disposition, died_at);
create index letter_error_queue on letter (error_short, queue, disposition, died_at);
create index letter_category on letter (category, disposition, died_at);
create index letter_category_queue on letter (category, queue, disposition, died_at);
create index letter_route on letter (route, disposition, died_at);
create index letter_reserved on letter (reserved, died_at) where reserved <> '';

-- The letter of a replayed item, as it was before the replay: valid while the item is ready and has as many deliveries.
-- A row that is not valid any more is never used, and deleted with its item. place, gap: those of `terms`; role: 1 if it
-- was the head of its order key, 2 if it was the gap.
create table recall (
    seq integer primary key,
    deliveries integer not null,
    due_at integer not null,
    renewed_at integer not null,
    attempt integer not null,
    errors integer not null,
    crashes integer not null,
    last_chance integer not null,
    ended_at integer,
    queue text not null,
    reason text not null,
    died_at integer not null,
    disposition text not null,
    cause text not null,
    error text not null,
    error_short text not null,
    category text not null,
    rule text not null,
    failure blob not null,
    route text not null,
    place integer,
    gap text,
    role integer not null
);

-- Number of open letters by cause. A row with 0 is deleted.
create table cause (
    cause text not null,
    queue text not null,
    n integer not null,
    primary key (cause, queue)
) without rowid;
create index cause_n on cause (n);

-- Open letters of each named route, and its capacity (null: unlimited).
create table route (
    name text primary key,
    open integer not null default 0,
    capacity integer
) without rowid;

create table attempt (
    seq integer not null,
    delivery integer not null,
    body blob not null,
    primary key (seq, delivery)
) without rowid;

-- Tags of items. An item with tags has bit 128 in item.ties; this table is not read for the others.
create table tag (
    tag text not null,
    seq integer not null,
    primary key (tag, seq)
) without rowid;
create index tag_seq on tag (seq);

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

-- Which items a journal entry changed: the history of an item, and how a repeated request is recognized.
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

-- The result of the last lease request of each worker's lane, as [seq, delivery, seq, delivery, ...].
create table nonce (
    worker text not null,
    lane integer not null,
    nonce text not null,
    at integer not null,
    leases blob not null,
    primary key (worker, lane)
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

-- A deleted document keeps its row, with body null, so that its version numbers continue.
create table document (
    kind text not null,
    key text not null,
    version integer not null,
    body blob,
    primary key (kind, key)
) without rowid;

-- One row per item that has Terms (core.item), or was asked to cancel while it ran. body: the Terms as JSON.
-- place: position in the line of its order key. gap: id of a dead item of that key which it was allowed to pass.
-- cancel: who asked for the cancellation, and why. parked: the label under which it was
-- parked last.
create table terms (
    seq integer primary key,
    body blob,
    order_key text not null default '',
    place integer,
    limit_key text not null default '',
    gap text not null default '',
    cancel text not null default '',
    parked text not null default ''
);
create index terms_key on terms (order_key) where order_key <> '';

-- The line of an order key. head: seq of the only item that may run, or null. waiting: number of items behind the head.
-- In the primary keys of line and follower the key precedes the queue: it differs more, so comparisons end sooner.
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

-- Unfulfilled dependencies. awaited is an id, since that item may have been pruned. die: the waiting item dies with it.
create table edge (
    awaited text not null,
    waiting integer not null,
    die integer not null default 0,
    primary key (awaited, waiting)
) without rowid;
create index edge_waiting on edge (waiting);

-- Holders of dedupe keys. until: end of the dedupe window, set when the holder has ended.
create table dedupe (
    scope text not null,
    key text not null,
    seq integer not null,
    id text not null,
    until integer,
    primary key (scope, key)
) without rowid;
create index dedupe_until on dedupe (until) where until is not null;

-- Number of leased items per limit key.
create table slot (
    queue text not null,
    key text not null,
    running integer not null,
    primary key (queue, key)
) without rowid;

-- Ready items that wait for a slot of their limit key.
create table aside (
    queue text not null,
    key text not null,
    seq integer not null,
    primary key (queue, key, seq)
) without rowid;

-- The fields of core.verbs.Gate; times and intervals in microseconds.
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

-- The number of the last change of each item that is or was a letter. id: of an item that was pruned, else null.
create table change (
    seq integer primary key,
    n integer not null,
    id text
);
create unique index change_n on change (n);
