-- lease: due items of unpaused queues to one worker.
-- Inputs: queue, kind, level, now, limit; then worker and lease end per item. Outputs: items with payloads, in due order.
-- Atomicity: picked and marked in one write; nobody else can write between.

-- :name last_nonce
select leases from nonce where worker = ? and lane = ? and nonce = ?;

-- :name keep_nonce
insert into nonce (worker, lane, nonce, at, leases) values (?, ?, ?, ?, ?)
on conflict (worker, lane) do update set nonce = excluded.nonce, at = excluded.at, leases = excluded.leases;

-- :name holds_alone
select 1 from item where worker = ? and state = 'leased' and alone = 1 limit 1;

-- :name queue
-- Whether it is paused, whether anything but level 0 without a kind is ready in it, and what bounds it, if anything does.
-- Two steps in the index: a comparison of rows, (kind, level) > ('', 0), would read all that waits.
select paused,
       exists (select 1 from item indexed by item_ready
               where state = 'ready' and hold = 0 and queue = ?1 and kind = '' and level > 0)
       or exists (select 1 from item indexed by item_ready
                  where state = 'ready' and hold = 0 and queue = ?1 and kind > ''),
       settings, leased
from queue where name = ?2;

-- :name levels
-- The kinds of a queue and their levels among the ready, by skipping through the index.
with recursive named (kind) as (
    select (select min(kind) from item indexed by item_ready where state = 'ready' and hold = 0 and queue = ?1)
    union all
    select (select min(i.kind) from item i indexed by item_ready
            where i.state = 'ready' and i.hold = 0 and i.queue = ?1 and i.kind > named.kind)
    from named where named.kind is not null
), found (kind, level) as (
    select kind, -1 from named where kind is not null
    union all
    select found.kind, (select min(i.level) from item i indexed by item_ready
                        where i.state = 'ready' and i.hold = 0 and i.queue = ?1 and i.kind = found.kind
                            and i.level > found.level)
    from found where found.level is not null
)
select kind, level from found where level >= 0;

-- :name levels_of
-- The same of some kinds, which come as a JSON array.
with recursive found (kind, level) as (
    select value, -1 from json_each(?2)
    union all
    select found.kind, (select min(i.level) from item i indexed by item_ready
                        where i.state = 'ready' and i.hold = 0 and i.queue = ?1 and i.kind = found.kind
                            and i.level > found.level)
    from found where found.level is not null
)
select distinct kind, level from found where level >= 0;

-- :name pick
-- Most have no ties, and then nothing is looked for in terms.
select i.id, i.queue, p.body, i.seq, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries + 1, i.attempt + 1,
       i.errors, i.crashes, i.replays, i.last_chance, p.crc, p.packing, i.ties, i.priority, t.body, t.gap, t.limit_key,
       t.order_key, t.place, i.kind, p.release
from item i indexed by item_ready
left join payload p on p.seq = i.seq
left join terms t on t.seq = case when i.ties <> 0 then i.seq end
where i.state = 'ready' and i.hold = 0 and i.queue = ? and i.kind = ? and i.level = ? and i.due_at <= ?
order by i.due_at, i.seq
limit ?;

-- :name waiting
-- As pick, without what only those that are given need: due, number, and the limit key of those that have one.
select i.due_at, i.seq, case when i.ties & 16 then (select t.limit_key from terms t where t.seq = i.seq) end
from item i indexed by item_ready
where i.state = 'ready' and i.hold = 0 and i.queue = ? and i.kind = ? and i.level = ? and i.due_at <= ?
order by i.due_at, i.seq
limit ?;

-- :name one
-- An item by its id, if it is ready in this queue and has no hold: as waiting, with its level and the queue's settings.
select i.due_at, i.seq, case when i.ties & 16 then (select t.limit_key from terms t where t.seq = i.seq) end, i.level,
       q.settings
from item i cross join queue q on q.name = i.queue
where i.id = ? and i.queue = ? and i.state = 'ready' and i.hold = 0;

-- :name chosen
-- The numbers of the items come as a JSON array, and they in its order.
select i.id, i.queue, p.body, i.seq, i.enqueued_at, i.due_at, i.renewed_at, i.deliveries + 1, i.attempt + 1,
       i.errors, i.crashes, i.replays, i.last_chance, p.crc, p.packing, i.ties, i.priority, t.body, t.gap, t.limit_key,
       t.order_key, t.place, i.kind, p.release
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
