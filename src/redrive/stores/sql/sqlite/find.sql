-- find: numbers of matching items in a stable order; `{where}` is the compiled selection with bound values.
-- Inputs: the selection's values, then where to go on and how many. Outputs: (died_at or 0, seq) per match.
-- Atomicity: one read transaction; get.by_seq reads the items in it.

-- :name letters
select l.died_at, l.seq
from letter l left join item i on i.seq = l.seq
where ({where}) and (l.died_at, l.seq) < (?, ?)
order by l.died_at desc, l.seq desc
limit ?;

-- :name items
select 0, i.seq
from item i left join letter l on l.seq = i.seq
where ({where}) and i.seq < ?
order by i.seq desc
limit ?;

-- :name oldest
-- For amend and prune: with state and disposition, earliest enqueued first.
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause
from item i left join letter l on l.seq = i.seq
where ({where})
order by i.seq
limit ?;

-- :name oldest_letters
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause
from letter l join item i on i.seq = l.seq
where ({where})
order by l.seq
limit ?;

-- :name count
select count(*) from item i left join letter l on l.seq = i.seq where ({where});

-- :name one
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause
from item i left join letter l on l.seq = i.seq
where i.id = ?;
