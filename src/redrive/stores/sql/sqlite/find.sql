-- find: numbers of matching items in a stable order; `{where}` is the compiled selection with bound values.
-- Inputs: the selection's values, then a range of places and how many. Outputs: (died_at or 0, seq, id) per match.
-- Atomicity: one read transaction per statement's range; get.by_seqs reads the items in it.

-- :name letters
select l.died_at, l.seq, i.id
from letter l left join item i on i.seq = l.seq
where ({where}) and (l.died_at, l.seq) < (?, ?) and (l.died_at, l.seq) >= (?, ?)
order by l.died_at desc, l.seq desc
limit ?;

-- :name items
select 0, i.seq, i.id
from item i left join letter l on l.seq = i.seq
where ({where}) and i.seq < ? and i.seq >= ?
order by i.seq desc
limit ?;

-- :name tagged_letters
-- Those with a tag that few items have. The cross join says where to begin: the planner cannot know how few.
select l.died_at, l.seq, i.id
from tag g cross join letter l on l.seq = g.seq left join item i on i.seq = l.seq
where g.tag = ? and ({where}) and (l.died_at, l.seq) < (?, ?) and (l.died_at, l.seq) >= (?, ?)
order by l.died_at desc, l.seq desc
limit ?;

-- :name tagged_items
select 0, i.seq, i.id
from tag g cross join item i on i.seq = g.seq left join letter l on l.seq = i.seq
where g.tag = ? and ({where}) and g.seq < ? and g.seq >= ?
order by g.seq desc
limit ?;

-- :name count_tagged
-- Up to so many.
select count(*) from (select 1 from tag where tag = ? limit ?);

-- :name boundary_of_letters
-- Where a slice of so many letters ends.
select died_at, seq from letter where (died_at, seq) < (?, ?) order by died_at desc, seq desc limit 1 offset ?;

-- :name boundary_of_items
select 0, seq from item where seq < ? order by seq desc limit 1 offset ?;

-- :name boundary_of_oldest
select seq from item where seq > ? order by seq limit 1 offset ?;

-- :name oldest_between
select i.id
from item i left join letter l on l.seq = i.seq
where ({where}) and i.seq > ? and i.seq <= ?
order by i.seq
limit ?;

-- :name oldest
-- For amend and prune: with state and disposition, earliest enqueued first.
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties
from item i left join letter l on l.seq = i.seq
where ({where})
order by i.seq
limit ?;

-- :name oldest_letters
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties
from letter l join item i on i.seq = l.seq
where ({where})
order by l.seq
limit ?;

-- :name count
select count(*) from item i left join letter l on l.seq = i.seq where ({where});

-- :name named
-- For amend: the items of a JSON array of ids, in its order.
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties
from json_each(?) named cross join item i on i.id = named.value left join letter l on l.seq = i.seq
order by named.key;
