-- lease: due items of unpaused queues to one worker.
-- Inputs: queue, crash level, now, limit; then worker and lease end per item. Outputs: items with payloads, in due order.
-- Atomicity: picked and marked in one write; nobody else can write between.

-- :name last_nonce
select leases from nonce where worker = ? and nonce = ?;

-- :name keep_nonce
insert into nonce (worker, nonce, at, leases) values (?, ?, ?, ?)
on conflict (worker) do update set nonce = excluded.nonce, at = excluded.at, leases = excluded.leases;

-- :name holds_alone
select 1 from item where worker = ? and state = 'leased' and alone = 1 limit 1;

-- :name queue
-- Whether it is paused, and the least number of crashes above zero among its ready items.
select paused, (select min(crashes) from item where state = 'ready' and queue = ? and crashes > 0)
from queue where name = ?;

-- :name levels
-- The crash counts above zero among the ready of a queue, by skipping through the index.
with recursive level (n) as (
    select min(crashes) from item where state = 'ready' and queue = ? and crashes > 0
    union all
    select (select min(crashes) from item where state = 'ready' and queue = ? and crashes > level.n)
    from level where level.n is not null
)
select n from level where n is not null;

-- :name pick
select i.id, i.queue, p.body, i.seq, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries + 1, i.attempt + 1,
       i.errors, i.crashes, i.replays, i.last_chance, p.crc, p.packing
from item i indexed by item_ready
left join payload p on p.seq = i.seq
where i.state = 'ready' and i.queue = ? and i.crashes = ? and i.due_at <= ?
order by i.due_at, i.seq
limit ?;

-- :name mark
-- The numbers of the items come as a JSON array.
update item
set state = 'leased', deliveries = deliveries + 1, attempt = attempt + 1,
    worker = ?, leased_at = ?, lease_until = ?, alone = ?
where seq in (select value from json_each(?));
