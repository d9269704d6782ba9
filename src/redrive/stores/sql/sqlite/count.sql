-- Counters that verbs move beside their own rows, in the verb's own write.
-- Inputs: what to add. Outputs: none.
-- Atomicity: once per queue (and cause) and write, in the same savepoint as the rows they count.

-- :name declare
insert into queue (name) values (?) on conflict (name) do nothing;

-- :name move
update queue
set ready = ready + ?, leased = leased + ?, done = done + ?, open = open + ?,
    archived = archived + ?, trash = trash + ?, cancelled = cancelled + ?
where name = ?;

-- :name cause
insert into cause (cause, queue, n) values (?, ?, ?)
on conflict (cause, queue) do update set n = n + excluded.n;

-- :name forget_causes
delete from cause where cause = ? and queue = ? and n <= 0;
