-- put: new items, all or none; an id that exists or was pruned is left alone.
-- Inputs: items with the numbers given to them. Outputs: which ids were there already.
-- Atomicity: one savepoint; the numbers are taken in the same write, so their order is the order of commits.

-- :name last_seq
select n from sequence where name = 'item';

-- :name keep_seq
update sequence set n = ? where name = 'item';

-- :name pruned
select 1 from tombstone where id = ?;

-- :name any_tombstone
select 1 from tombstone limit 1;

-- :name insert_item
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at)
values (?, ?, ?, 'ready', ?, ?, ?)
on conflict (id) do nothing;

-- :name there
-- Which of these ids are.
select i.id from json_each(?) meant cross join item i on i.id = meant.value;

-- :name insert_bound
-- With priority, hold and ties; whether its id is there already was looked up before.
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at, priority, hold, ties)
values (?, ?, ?, 'ready', ?, ?, ?, ?, ?, ?);

-- :name insert_payload
insert into payload (seq, crc, body) values (?, ?, ?);

-- :name insert_packed
insert into payload (seq, crc, body, packing) values (?, ?, ?, ?);
