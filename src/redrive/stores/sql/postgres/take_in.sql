-- take_in: letters of another store, with their evidence. The caller has made them ready (stores/imports.py).
-- Inputs: letters as arrays, in the order in which they enter; what belongs to them names their numbers.
-- Outputs: which were added.
-- Atomicity: one transaction with counters, causes, the audit entry and the deeds. They enter dead: nobody leases them, no
--   line, key or edge knows of them, so nothing is locked. Two who bring the same ids wait for each other, always in the
--   order of the ids, and one of them finds them there.

-- :name enter
with numbered as materialized (
    select nextval('{schema}.item_seq') as seq, o.*
    from unnest(%b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::smallint[], %b::bytea[], %b::text[])
         as o (id, queue, enqueued_at, crc, packing, body, release)
)
insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body, release)
select n.seq, n.id, n.queue, n.enqueued_at, n.crc, n.packing, n.body, n.release from numbered n order by n.id
on conflict (id) do nothing
returning id, seq;

-- :name in_clear
select {schema}.in_clear(%b::text[], %b::smallint[]);

-- :name leave_buried
-- After the insert, which waits for a prune of the same id: only then is its tombstone to be seen.
delete from {schema}.item i
where i.seq = any(%b::bigint[]) and exists (select 1 from {schema}.tombstone t where t.id = i.id offset 0)
returning i.id;

-- :name courses
-- Without a worker: its name is empty, and the time of its lease less than 0.
insert into {schema}.course (
    seq, queue, state, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, omitted, last_chance, worker,
    leased_at, ended_at, priority, ties, level, kind
)
select o.seq, o.queue, 'dead', o.due_at, o.renewed_at, o.deliveries, o.attempt, o.errors, o.crashes, o.replays, o.omitted,
       o.last_chance = 1, nullif(o.worker, ''), case when o.leased_at >= 0 then o.leased_at end, o.ended_at, o.priority,
       o.ties, o.level, o.kind
from unnest(
    %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::integer[], %b::integer[], %b::integer[], %b::integer[],
    %b::integer[], %b::integer[], %b::smallint[], %b::text[], %b::bigint[], %b::bigint[], %b::smallint[],
    %b::smallint[], %b::integer[], %b::text[]
) as o (
    seq, queue, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, omitted, last_chance, worker,
    leased_at, ended_at, priority, ties, level, kind
);

-- :name letters
insert into {schema}.letter (
    seq, queue, died_at, disposition, reason, cause, error, error_short, category, rule, route, failure
)
select * from unnest(
    %b::bigint[], %b::text[], %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[],
    %b::text[], %b::text[], %b::bytea[]
);

-- :name terms
-- Each has a place of its own, as if it had just been put: nobody was there to wait behind it.
insert into {schema}.terms (
    seq, queue, order_key, place, limit_key, scope, dedupe_key, until, dies, body, after
)
select i.seq, i.queue, o.order_key, case when o.order_key = '' then 0 else nextval('{schema}.item_seq') end, o.limit_key,
       o.scope, o.dedupe_key, case when o.span >= 0 then i.enqueued_at + o.span end, o.dies = 1, o.body,
       coalesce(a.ids, '{}')
from unnest(
    %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::smallint[], %b::bytea[]
) with ordinality as o (seq, order_key, limit_key, scope, dedupe_key, span, dies, body, nth)
join {schema}.item i on i.seq = any (array[o.seq])
left join (
    select n.seq, array_agg(n.id order by n.nth) as ids
    from unnest(%b::bigint[], %b::text[]) with ordinality as n (seq, id, nth) group by n.seq
) a on a.seq = o.seq
order by o.nth;

-- :name attempts
insert into {schema}.attempt (seq, delivery, body)
select o.seq, o.delivery, o.body from unnest(%b::bigint[], %b::integer[], %b::bytea[]) as o (seq, delivery, body);

-- :name revisions
insert into {schema}.revision (seq, number, at, actor, reason, body, packing, crc)
select * from unnest(
    %b::bigint[], %b::integer[], %b::bigint[], %b::text[], %b::text[], %b::bytea[], %b::smallint[], %b::bigint[]
);

-- :name tags
insert into {schema}.tag (tag, seq) select o.tag, o.seq from unnest(%b::bigint[], %b::text[]) as o (seq, tag);
