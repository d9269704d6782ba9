-- lease: due items of unpaused queues to one worker.
-- Inputs: queue, level, now, limit; then worker and lease end per item. Outputs: items with payloads, in due order.
-- Atomicity: picked and marked in one write; nobody else can write between.

-- :name last_nonce
select leases from nonce where worker = ? and lane = ? and nonce = ?;

-- :name keep_nonce
insert into nonce (worker, lane, nonce, at, leases) values (?, ?, ?, ?, ?)
on conflict (worker, lane) do update set nonce = excluded.nonce, at = excluded.at, leases = excluded.leases;

-- :name holds_alone
select 1 from item where worker = ? and state = 'leased' and alone = 1 limit 1;

-- :name queue
-- Whether it is paused, the least level above zero among what is ready in it, and what bounds it, if anything does.
select paused, (select min(level) from item where state = 'ready' and hold = 0 and queue = ? and level > 0),
       settings, leased
from queue where name = ?;

-- :name levels
-- The levels above zero among the ready of a queue, by skipping through the index.
with recursive found (n) as (
    select min(level) from item where state = 'ready' and hold = 0 and queue = ? and level > 0
    union all
    select (select min(level) from item where state = 'ready' and hold = 0 and queue = ? and level > found.n)
    from found where found.n is not null
)
select n from found where n is not null;

-- :name pick
-- Most have no ties, and then nothing is looked for in terms.
select i.id, i.queue, p.body, i.seq, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries + 1, i.attempt + 1,
       i.errors, i.crashes, i.replays, i.last_chance, p.crc, p.packing, i.ties, i.priority, t.body, t.gap, t.limit_key,
       t.order_key, t.place
from item i indexed by item_ready
left join payload p on p.seq = i.seq
left join terms t on t.seq = case when i.ties <> 0 then i.seq end
where i.state = 'ready' and i.hold = 0 and i.queue = ? and i.level = ? and i.due_at <= ?
order by i.due_at, i.seq
limit ?;

-- :name waiting
-- As pick, without what only those that are given need: due, number, and the limit key of those that have one.
select i.due_at, i.seq, case when i.ties & 16 then (select t.limit_key from terms t where t.seq = i.seq) end
from item i indexed by item_ready
where i.state = 'ready' and i.hold = 0 and i.queue = ? and i.level = ? and i.due_at <= ?
order by i.due_at, i.seq
limit ?;

-- :name chosen
-- The numbers of the items come as a JSON array, and they in its order.
select i.id, i.queue, p.body, i.seq, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries + 1, i.attempt + 1,
       i.errors, i.crashes, i.replays, i.last_chance, p.crc, p.packing, i.ties, i.priority, t.body, t.gap, t.limit_key,
       t.order_key, t.place
from json_each(?) meant cross join item i on i.seq = meant.value
left join payload p on p.seq = i.seq
left join terms t on t.seq = case when i.ties <> 0 then i.seq end
order by meant.key;

-- :name mark
-- The numbers of the items come as a JSON array.
update item
set state = 'leased', deliveries = deliveries + 1, attempt = attempt + 1,
    worker = ?, leased_at = ?, lease_until = ?, alone = ?
where seq in (select value from json_each(?));
