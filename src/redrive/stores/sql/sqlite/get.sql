-- get: one item with its history.
-- Inputs: id, or numbers of items. Outputs: an item row as rows.py reads it; attempts; deeds.
-- Atomicity: one read transaction.

-- :name item
select i.id, i.queue, p.body, i.seq, i.state, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries, i.attempt,
       i.errors, i.crashes, i.replays, i.last_chance, i.alone, i.worker, i.leased_at, i.lease_until, i.ended_at,
       r.body, p.crc, l.reason, l.died_at, l.disposition, l.failure, p.packing, r.packing, l.route, i.priority, i.hold,
       n.status = 'parked' and n.head <> i.seq, t.body, t.gap, t.cancel,
       case when i.ties & 128 then (select json_group_array(tag) from tag where tag.seq = i.seq) end, t.parked,
       i.kind, p.release, l.reserved, i.omitted
from item i
left join payload p on p.seq = i.seq
left join result r on r.seq = i.seq
left join letter l on l.seq = i.seq
left join terms t on t.seq = i.seq
left join line n on n.queue = i.queue and n.key = t.order_key
where i.id = ?;

-- :name by_seq
select i.id, i.queue, p.body, i.seq, i.state, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries, i.attempt,
       i.errors, i.crashes, i.replays, i.last_chance, i.alone, i.worker, i.leased_at, i.lease_until, i.ended_at,
       r.body, p.crc, l.reason, l.died_at, l.disposition, l.failure, p.packing, r.packing, l.route, i.priority, i.hold,
       n.status = 'parked' and n.head <> i.seq, t.body, t.gap, t.cancel,
       case when i.ties & 128 then (select json_group_array(tag) from tag where tag.seq = i.seq) end, t.parked,
       i.kind, p.release, l.reserved
from item i
left join payload p on p.seq = i.seq
left join result r on r.seq = i.seq
left join letter l on l.seq = i.seq
left join terms t on t.seq = i.seq
left join line n on n.queue = i.queue and n.key = t.order_key
where i.seq = ?;

-- :name by_seqs
-- Of a JSON array of numbers, in no order.
select i.id, i.queue, p.body, i.seq, i.state, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries, i.attempt,
       i.errors, i.crashes, i.replays, i.last_chance, i.alone, i.worker, i.leased_at, i.lease_until, i.ended_at,
       r.body, p.crc, l.reason, l.died_at, l.disposition, l.failure, p.packing, r.packing, l.route, i.priority, i.hold,
       n.status = 'parked' and n.head <> i.seq, t.body, t.gap, t.cancel,
       case when i.ties & 128 then (select json_group_array(tag) from tag where tag.seq = i.seq) end, t.parked,
       i.kind, p.release, l.reserved
from item i
left join payload p on p.seq = i.seq
left join result r on r.seq = i.seq
left join letter l on l.seq = i.seq
left join terms t on t.seq = i.seq
left join line n on n.queue = i.queue and n.key = t.order_key
where i.seq in (select value from json_each(?));

-- :name head
-- Whom a follower waits for.
select h.id, h.seq from terms t join item i on i.seq = t.seq
join line n on n.queue = i.queue and n.key = t.order_key
join item h on h.seq = n.head
where t.seq = ? and t.order_key <> '' and n.head <> t.seq;

-- :name revisions
select number, body, packing, crc, at, actor, reason from revision where seq = ? order by number;

-- :name attempts
select body from attempt where seq = ? order by delivery;

-- :name deeds
select j.at, j.change, j.actor, j.reason, j.request_id
from deed d join journal j on j.position = d.position
where d.seq = ?
order by d.position;

-- :name tombstone
select id, queue, state, payload_sha256, at, actor, reason from tombstone where id = ?;
