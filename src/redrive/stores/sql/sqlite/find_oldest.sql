-- find_oldest: what find.sql has, under the same names, from the other end: what died, or was enqueued, first.
-- Inputs: the selection's values, then the place to go on from, the last place, and how many.
-- Outputs: (died_at or 0, seq, id) per match.
-- Atomicity: one read transaction per statement's range; get.by_seqs reads the items in it.

-- :name letters
select l.died_at, l.seq, i.id
from letter l left join item i on i.seq = l.seq
where ({where}) and (l.died_at, l.seq) > (?, ?) and (l.died_at, l.seq) <= (?, ?)
order by l.died_at, l.seq
limit ?;

-- :name items
select 0, i.seq, i.id
from item i left join letter l on l.seq = i.seq
where ({where}) and i.seq > ? and i.seq <= ?
order by i.seq
limit ?;

-- :name tagged_letters
-- Those with a tag that few items have. The cross join says where to begin: the planner cannot know how few.
select l.died_at, l.seq, i.id
from tag g cross join letter l on l.seq = g.seq left join item i on i.seq = l.seq
where g.tag = ? and ({where}) and (l.died_at, l.seq) > (?, ?) and (l.died_at, l.seq) <= (?, ?)
order by l.died_at, l.seq
limit ?;

-- :name tagged_items
select 0, i.seq, i.id
from tag g cross join item i on i.seq = g.seq left join letter l on l.seq = i.seq
where g.tag = ? and ({where}) and g.seq > ? and g.seq <= ?
order by g.seq
limit ?;

-- :name boundary_of_letters
-- Where a slice of so many letters ends.
select died_at, seq from letter where (died_at, seq) > (?, ?) order by died_at, seq limit 1 offset ?;

-- :name boundary_of_items
select 0, seq from item where seq > ? order by seq limit 1 offset ?;
