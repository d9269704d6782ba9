-- configure: settings of a queue, which count.declare has declared in the same write.
-- Inputs: paused, by whom, why; the queue. Outputs: none. Atomicity: one savepoint.

-- :name pause
update queue set paused = ?, paused_by = ?, paused_reason = ? where name = ?;
