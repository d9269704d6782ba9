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
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at, kind)
values (?, ?, ?, 'ready', ?, ?, ?, ?)
on conflict (id) do nothing;

-- :name there
-- Which of these ids are.
select i.id from json_each(?) meant cross join item i on i.id = meant.value;

-- :name insert_bound
-- With priority, hold and ties; whether its id is there already was looked up before.
insert into item (seq, id, queue, state, enqueued_at, due_at, renewed_at, priority, hold, ties, kind)
values (?, ?, ?, 'ready', ?, ?, ?, ?, ?, ?, ?);

-- :name insert_payload
insert into payload (seq, crc, release, body) values (?, ?, ?, ?);

-- :name insert_packed
insert into payload (seq, crc, release, body, packing) values (?, ?, ?, ?, ?);

-- :name rewrite_payload
-- Of reencrypt: what it says stays the same.
update payload set crc = ?, body = ?, packing = ? where seq = (select seq from item where id = ?) and body = ?;

-- :name rewrite_revision
update revision set crc = ?, body = ?, packing = ?
where seq = (select seq from item where id = ?) and body = ? and number = ?;

-- :name rewrite_result
update result set body = ?, packing = ? where seq = (select seq from item where id = ?) and body = ?;
