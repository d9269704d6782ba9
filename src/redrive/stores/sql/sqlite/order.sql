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
-- The lines of these keys of one queue, each with its first follower. By place among the keys, a JSON array.
select meant.key, n.head, n.waiting, n.status, n.gap, f.place, f.seq
from json_each(?2) meant
cross join line n on n.queue = ?1 and n.key = meant.value
left join follower f on f.queue = ?1 and f.key = n.key
    and f.place = (select min(x.place) from follower x where x.queue = ?1 and x.key = n.key);

-- :name step
-- Of lines of one queue whose heads are done, those that flow and have followers: the first one leads.
update line
set waiting = waiting - 1,
    head = (select f.seq from follower f where f.queue = ?1 and f.key = line.key order by f.place limit 1)
where queue = ?1 and key in (select value from json_each(?2)) and status = 'flowing' and waiting > 0
returning key, head, gap;

-- :name step_one
-- The same of one line: to unpack a list takes longer than all else.
update line
set waiting = waiting - 1,
    head = (select f.seq from follower f where f.queue = ?1 and f.key = ?2 order by f.place limit 1)
where queue = ?1 and key = ?2 and status = 'flowing' and waiting > 0
returning key, head, gap;

-- :name end
-- Of lines of one queue whose heads are done, those that say nothing more: nobody follows, and nothing is missing.
delete from line where queue = ?1 and key in (select value from json_each(?2)) and waiting = 0 and gap = '';

-- :name leave_first
-- The first follower of each of these keys of one queue.
delete from follower
where (key, queue, place) in (
    select meant.value, ?1, (select min(x.place) from follower x where x.key = meant.value and x.queue = ?1)
    from json_each(?2) meant
);

-- :name leave_first_of_one
delete from follower
where key = ?2 and queue = ?1
  and place = (select min(x.place) from follower x where x.key = ?2 and x.queue = ?1);

-- :name overtaken
-- A head that waits for others, and the first follower if that has a place before it.
select n.head, ht.place, n.gap, f.seq, f.place
from line n
cross join item h on h.seq = n.head
    and (h.hold = 1 or h.hold = 4 and exists (select 1 from edge e where e.waiting = h.seq))
cross join terms ht on ht.seq = h.seq
cross join follower f on f.queue = n.queue and f.key = n.key and f.place < ht.place
    and f.place = (select min(x.place) from follower x where x.queue = n.queue and x.key = n.key)
where n.queue = ? and n.key = ?;

-- :name parked
-- How many items behind the head an operator parked: they count as parked whatever becomes of the head.
select count(*) from item i indexed by item_parked
cross join terms t on t.seq = i.seq and t.order_key = ?2
cross join follower f on f.queue = ?1 and f.key = ?2 and f.place = t.place and f.seq = i.seq
where i.queue = ?1 and i.hold = 4;

-- :name lead
update line set head = ? where queue = ? and key = ?;

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
-- Those of these, a JSON array of numbers, that waited for their turn only.
update item set hold = 0 where hold = 2 and seq in (select value from json_each(?));

-- :name next_place
-- Places are numbers of the same sequence as items: in the order of commits.
update sequence set n = n + 1 where name = 'item' returning n;

-- :name mode
select settings from queue where name = ?;
