-- Counters that verbs move beside their own rows, in the verb's own write.
-- Inputs: what to add. Outputs: of `move`, the settings of the queue, if it has any, and what it holds now.
-- Atomicity: once per queue (and cause, and route) and write, in the same savepoint as the rows they count.

-- :name declare
insert into queue (name) values (?) on conflict (name) do nothing;

-- :name move
update queue
set ready = ready + ?, leased = leased + ?, done = done + ?, open = open + ?,
    archived = archived + ?, trash = trash + ?, cancelled = cancelled + ?, held = held + ?, parked = parked + ?
where name = ?
returning settings, ready + held + parked + leased;

-- :name cause
insert into cause (cause, queue, n) values (?, ?, ?)
on conflict (cause, queue) do update set n = n + excluded.n;

-- :name forget_causes
delete from cause where cause = ? and queue = ? and n <= 0;

-- :name route
insert into route (name, open) values (?, ?)
on conflict (name) do update set open = open + excluded.open;

-- :name forget_routes
delete from route where name = ? and open <= 0 and capacity is null;
