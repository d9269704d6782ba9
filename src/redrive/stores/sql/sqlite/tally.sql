-- tally (and wait): kept counters of every declared queue, and its earliest due time by index.
-- Inputs: none; a queue, a kind and a level. Outputs: one row per queue and route, by name; an instant or null.
-- Atomicity: one read transaction.

-- :name queues
select name, ready, leased, done, open, archived, trash, cancelled, held, parked, settings,
       paused, paused_by, paused_reason, rate_at
from queue order by name;

-- :name next_queue
select name, ready, leased, done, open, archived, trash, cancelled, held, parked, settings,
       paused, paused_by, paused_reason, rate_at
from queue where name >= ? order by name limit 1;

-- :name queue
select name, ready, leased, done, open, archived, trash, cancelled, held, parked, settings,
       paused, paused_by, paused_reason, rate_at
from queue where name = ?;

-- :name routes
select name, open, capacity from route order by name;

-- :name oldest_due
select min(due_at) from item indexed by item_ready
where state = 'ready' and hold = 0 and queue = ? and kind = ? and level = ?;
