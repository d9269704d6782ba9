-- limits: how many leased items have a limit key, and who was set aside because they were enough.
-- Inputs: queue and key; the number of an item. Outputs: how many run; the first that was set aside.
-- Atomicity: part of the verb's own savepoint.

-- :name running
-- Of many keys.
select s.key, s.running from json_each(?) meant cross join slot s on s.queue = ? and s.key = meant.value;

-- :name enter
insert into slot (queue, key, running) values (?, ?, 1) on conflict (queue, key) do update set running = running + 1;

-- :name leave
update slot set running = running - 1 where queue = ? and key = ?;

-- :name set_aside
insert into aside (queue, key, seq) values (?, ?, ?);

-- :name hold
update item set hold = 3 where seq = ?;

-- :name any_aside
select 1 from aside where queue = ? limit 1;

-- :name first_aside
select min(seq) from aside where queue = ? and key = ?;

-- :name take_back
delete from aside where queue = ? and key = ? and seq = ?;

-- :name free
update item set hold = 0 where seq = ? and hold = 3;

-- :name free_all
update item set hold = 0 where hold = 3 and seq in (select seq from aside where queue = ?);

-- :name take_all_back
delete from aside where queue = ?;

-- :name rate
select rate_at from queue where name = ?;

-- :name spend_rate
update queue set rate_at = ? where name = ?;

-- :name gate
select name, version, interval, burst, share, cap, floor, next_at, credit, floor_at, body from gate where name = ?;

-- :name spend_gate
update gate set next_at = ?, credit = ?, floor_at = ? where name = ?;
