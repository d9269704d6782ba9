-- tally (and wait): kept counters of every declared queue, and its earliest due time by index.
-- Inputs: none; a queue and a number of crashes. Outputs: one row per queue, by name; an instant or null.
-- Atomicity: one read transaction.

-- :name queues
select name, ready, leased, done, open, archived, trash, cancelled, paused, paused_by, paused_reason
from queue order by name;

-- :name oldest_due
select min(due_at) from item indexed by item_ready where state = 'ready' and queue = ? and crashes = ?;
