-- order: the lines of order keys. Only the head of a line may be leased; followers have the hold 2 (or 1, for others).
-- Inputs: queue and key; numbers and places of items. Outputs: a line, and its first follower.
-- Atomicity: part of the verb's own savepoint. No statement looks at more than one follower.

-- :name line
select head, waiting, status, gap from line where queue = ? and key = ?;

-- :name next
select l.head, l.waiting, l.status, l.gap, f.place, f.seq, i.hold
from line l
left join follower f on f.queue = l.queue and f.key = l.key
    and f.place = (select min(place) from follower where queue = l.queue and key = l.key)
left join item i on i.seq = f.seq
where l.queue = ? and l.key = ?;

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
