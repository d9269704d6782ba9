-- wait: when something of a queue will be due.
-- Inputs: queue, now. Outputs: an instant or null.
-- Atomicity: one read transaction.

-- :name first_plain
select min(due_at) from item indexed by item_ready where state = 'ready' and queue = ? and crashes = 0;

-- :name next_crashed
select min(due_at) from item indexed by item_ready where state = 'ready' and queue = ? and crashes = ? and due_at > ?;
