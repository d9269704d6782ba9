-- configure, configure_route, settings: what is kept of a queue, which count.declare has declared in the same write.
-- Inputs: paused, by whom, why; settings as bytes; the queue or route. Outputs: settings, and what there is now.
-- Atomicity: one savepoint.

-- :name pause
update queue set paused = ?, paused_by = ?, paused_reason = ? where name = ?;

-- :name settings
select settings, ready + held + parked + leased from queue where name = ?;

-- :name keep
update queue set settings = ? where name = ?;

-- :name full_rate
update queue set rate_at = 0 where name = ?;

-- :name route
select open from route where name = ?;

-- :name keep_route
insert into route (name, capacity) values (?, ?) on conflict (name) do update set capacity = excluded.capacity;

-- :name forget_route
delete from route where name = ? and open <= 0 and capacity is null;
