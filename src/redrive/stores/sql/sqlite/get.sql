-- get: one item with its history.
-- Inputs: id, or numbers of items. Outputs: an item row as rows.py reads it; attempts; deeds.
-- Atomicity: one read transaction.

-- :name item
select i.id, i.queue, p.body, i.seq, i.state, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries, i.attempt,
       i.errors, i.crashes, i.replays, i.last_chance, i.alone, i.worker, i.leased_at, i.lease_until, i.ended_at,
       r.body, p.crc, l.reason, l.died_at, l.disposition, l.failure, p.packing, r.packing, i.omitted
from item i
left join payload p on p.seq = i.seq
left join result r on r.seq = i.seq
left join letter l on l.seq = i.seq
where i.id = ?;

-- :name by_seq
select i.id, i.queue, p.body, i.seq, i.state, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries, i.attempt,
       i.errors, i.crashes, i.replays, i.last_chance, i.alone, i.worker, i.leased_at, i.lease_until, i.ended_at,
       r.body, p.crc, l.reason, l.died_at, l.disposition, l.failure, p.packing, r.packing
from item i
left join payload p on p.seq = i.seq
left join result r on r.seq = i.seq
left join letter l on l.seq = i.seq
where i.seq = ?;

-- :name attempts
select body from attempt where seq = ? order by delivery;

-- :name deeds
select j.at, j.change, j.actor, j.reason, j.request_id
from deed d join journal j on j.position = d.position
where d.seq = ?
order by d.position;

-- :name tombstone
select id, queue, state, payload_sha256, at, actor, reason from tombstone where id = ?;
