-- order: the lines of order keys. Only the head of a line may be leased; followers have the hold 2 (or 1, for others).
-- Inputs: queue and key; numbers and places of items. Outputs: a line, and its first follower.
-- Atomicity: part of the verb's own savepoint. No statement looks at more than one follower.

-- :name line
select head, waiting, status, gap from line where queue = ? and key = ?;

-- :name lines
-- Of many names, [queue, key] each.
select n.queue, n.key, n.head, n.waiting, n.status, n.gap
from json_each(?) meant
cross join line n on n.queue = json_extract(meant.value, '$[0]') and n.key = json_extract(meant.value, '$[1]');

-- :name next
-- The lines of these items, each with its first follower.
select t.seq, n.head, n.waiting, n.status, n.gap, f.place, f.seq, h.hold
from json_each(?) meant
cross join item i on i.seq = meant.value
cross join terms t on t.seq = i.seq
cross join line n on n.queue = i.queue and n.key = t.order_key
left join follower f on f.queue = n.queue and f.key = n.key
    and f.place = (select min(x.place) from follower x where x.queue = n.queue and x.key = n.key)
left join item h on h.seq = f.seq;

-- :name keep
insert into line (queue, key, head, waiting, status, gap) values (?, ?, ?, ?, ?, ?)
on conflict (queue, key) do update
set head = excluded.head, waiting = excluded.waiting, status = excluded.status, gap = excluded.gap;

-- :name forget
delete from line where queue = ? and key = ?;

-- :name follow
insert into follower (queue, key, place, seq) values (?, ?, ?, ?);

-- :name leave
delete from follower where queue = ? and key = ? and place = ?;

-- :name free
update item set hold = 0 where seq = ? and hold = 2;

-- :name next_place
-- Places are numbers of the same sequence as items: in the order of commits.
update sequence set n = n + 1 where name = 'item' returning n;

-- :name mode
select settings from queue where name = ?;
