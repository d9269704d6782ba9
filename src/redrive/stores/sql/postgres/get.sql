-- get (and find): items as rows.py reads them, with their history.
-- Inputs: id, or numbers of items found by another query. Outputs: item rows; attempts; deeds; a tombstone.
-- Atomicity: one statement, so one picture.

-- :name by_id
select seq, 0::bigint as place from {schema}.item where id = %b

-- :name whole
-- `{found}` gives numbers of items and their places in the order. They are found first, whatever the planner thinks.
with found as materialized ({found})
select i.id, i.queue, i.body, i.seq, c.state, i.enqueued_at, c.due_at, c.renewed_at, c.deliveries, c.attempt,
       c.errors, c.crashes, c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until, c.ended_at,
       r.body, i.crc, l.reason, l.died_at, l.disposition, l.failure, i.packing, r.packing, found.place
from found
join {schema}.item i on i.seq = found.seq
join {schema}.course c on c.seq = found.seq
left join {schema}.result r on r.seq = found.seq
left join {schema}.letter l on l.seq = found.seq
order by found.place desc, found.seq desc;

-- :name names
with found as materialized ({found})
select i.id, found.seq, found.place
from found join {schema}.item i on i.seq = found.seq
order by found.place desc, found.seq desc;

-- :name history
with found as materialized ({found})
select i.id, i.queue, i.body, i.seq, c.state, i.enqueued_at, c.due_at, c.renewed_at, c.deliveries, c.attempt,
       c.errors, c.crashes, c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until, c.ended_at,
       r.body, i.crc, l.reason, l.died_at, l.disposition, l.failure, i.packing, r.packing, c.omitted,
       array(select a.body from {schema}.attempt a where a.seq = found.seq order by a.delivery),
       d.at, d.change, d.actor, d.reason, d.request_id
from found
join {schema}.item i on i.seq = found.seq
join {schema}.course c on c.seq = found.seq
left join {schema}.result r on r.seq = found.seq
left join {schema}.letter l on l.seq = found.seq
cross join lateral (
    select array_agg(j.at order by j.position) as at, array_agg(j.change order by j.position) as change,
           array_agg(j.actor order by j.position) as actor, array_agg(j.reason order by j.position) as reason,
           array_agg(j.request_id order by j.position) as request_id
    from {schema}.deed deed join {schema}.journal j on j.position = deed.position
    where deed.seq = found.seq
) d;

-- :name tombstone
select id, queue, state, payload_sha256, at, actor, reason from {schema}.tombstone where id = %b;
