-- get (and find): items as rows.py reads them, with their history.
-- Inputs: id, or numbers of items found by another query. Outputs: item rows; attempts; deeds; a tombstone.
-- Atomicity: one statement, so one picture.

-- :name tags_of
-- For items whose ties say that they have any.
create or replace function {schema}.tags_of(of_seq bigint) returns text[]
language sql stable parallel safe
as $function$
    select array(select g.tag from {schema}.tag g where g.seq = of_seq order by g.tag)
$function$;

-- :name by_id
select seq, 0::bigint as place from {schema}.item where id = %b

-- :name whole
-- `{found}` gives numbers of items and their places in the order. They are found first, whatever the planner thinks, and
-- then each row by its key: the offset keeps it from walking a table that it believes to be empty. Every index of letters
-- has the number somewhere; only the key has it in this order. With tags it is the same.
with found as materialized ({found})
select i.id, i.queue, i.body, i.seq, c.state, i.enqueued_at, c.due_at, c.renewed_at, c.deliveries, c.attempt,
       c.errors, c.crashes, c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until, c.ended_at,
       r.body, i.crc, l.reason, l.died_at, l.disposition, l.failure, i.packing, r.packing, l.route, c.priority, c.hold,
       n.status, t.body, t.gap, t.cancel,
       case when c.ties & 128 <> 0 then array(
           select g.tag from (
               select g.tag from {schema}.tag g where g.seq >= c.seq and g.seq <= c.seq order by g.seq offset 0
           ) g order by g.tag
       ) end,
       t.parked,
       c.kind, i.release, l.reserved, found.place
from found
cross join lateral (select * from {schema}.item i where i.seq = found.seq offset 0) i
cross join lateral (select * from {schema}.course c where c.seq = found.seq offset 0) c
left join lateral (select * from {schema}.result r where r.seq = found.seq offset 0) r on true
left join lateral (
    select * from {schema}.letter l where l.seq >= found.seq and l.seq <= found.seq order by l.seq limit 1
) l on true
left join lateral (select * from {schema}.terms t where c.ties & 64 <> 0 and t.seq = c.seq offset 0) t on true
left join lateral (
    select * from {schema}.line n
    where n.queue = i.queue and n.key = case when c.hold > 0 and t.order_key <> '' then t.order_key end offset 0
) n on true
order by found.place desc, found.seq desc;

-- :name names
with found as materialized ({found})
select i.id, found.seq, found.place
from found cross join lateral (select * from {schema}.item i where i.seq = found.seq offset 0) i
order by found.place desc, found.seq desc;

-- :name history
with found as materialized ({found})
select i.id, i.queue, i.body, i.seq, c.state, i.enqueued_at, c.due_at, c.renewed_at, c.deliveries, c.attempt,
       c.errors, c.crashes, c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until, c.ended_at,
       r.body, i.crc, l.reason, l.died_at, l.disposition, l.failure, i.packing, r.packing, l.route, c.priority, c.hold,
       n.status, t.body, t.gap, t.cancel,
       case when c.ties & 128 <> 0 then {schema}.tags_of(c.seq) end,
       t.parked,
       c.kind, i.release, l.reserved, c.omitted,
       array(select a.body from {schema}.attempt a where a.seq = found.seq order by a.delivery),
       array(
           select b.id from (
               select h.seq, h.id from {schema}.item h
               where h.seq = case when c.hold in (1, 2, 4) and n.head <> c.seq then n.head end
               union
               select a.seq, o.id
               from unnest(case when c.hold = 1 or c.hold = 4 and exists (
                   select 1 from {schema}.edge e where e.waiting = c.seq
               ) then t.after end) as o (id)
               left join {schema}.item a on a.id = any (array[o.id])
               left join {schema}.course d on d.seq = any (array[a.seq])
               left join {schema}.tombstone s on s.id = any (array[o.id])
               where coalesce(d.state, s.state, '') <> 'done'
           ) b
           order by b.seq nulls first, b.id limit %b
       ),
       d.at, d.change, d.actor, d.reason, d.request_id
from found
cross join lateral (select * from {schema}.item i where i.seq = found.seq offset 0) i
cross join lateral (select * from {schema}.course c where c.seq = found.seq offset 0) c
left join lateral (select * from {schema}.result r where r.seq = found.seq offset 0) r on true
left join lateral (
    select * from {schema}.letter l where l.seq >= found.seq and l.seq <= found.seq order by l.seq limit 1
) l on true
left join lateral (select * from {schema}.terms t where c.ties & 64 <> 0 and t.seq = c.seq offset 0) t on true
left join lateral (
    select * from {schema}.line n
    where n.queue = i.queue and n.key = case when c.hold > 0 and t.order_key <> '' then t.order_key end offset 0
) n on true
cross join lateral (
    select array_agg(j.at order by j.position) as at, array_agg(j.change order by j.position) as change,
           array_agg(j.actor order by j.position) as actor, array_agg(j.reason order by j.position) as reason,
           array_agg(j.request_id order by j.position) as request_id
    from {schema}.deed deed join {schema}.journal j on j.position = any (array[deed.position])
    where deed.seq = found.seq
) d;

-- :name revisions
-- Up to a number: one more may have been made since the item was read.
select number, body, packing, crc, at, actor, reason from {schema}.revision
where seq = %b::bigint and number < %b::integer order by number;

-- :name tombstone
select id, queue, state, payload_sha256, at, actor, reason from {schema}.tombstone where id = %b;
