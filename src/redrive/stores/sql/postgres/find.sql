-- find: numbers of matching items in a stable order; `{where}` is the compiled selection with bound values, `{joins}`
-- are the tables it reads besides the one that is walked.
-- Inputs: the selection's values, then the place to go on from and how many. Outputs: a place and a number per match.
-- Atomicity: one statement together with get.whole or get.names, which read the items.

-- :name letters
select l.died_at as place, l.seq
from {schema}.letter l {joins}
where ({where}) and (l.died_at, l.seq) < (%b::bigint, %b::bigint)
order by l.died_at desc, l.seq desc
limit %b::bigint

-- :name walked_letters
-- The same by the index that begins with `{columns}`, which equal `{values}`; only that one has this order.
select l.died_at as place, l.seq
from {schema}.letter l {joins}
where ({columns}, l.died_at, l.seq) <= ({values}, %b::bigint, %b::bigint) and ({columns}) >= ({values}) and ({where})
order by {descending}, l.died_at desc, l.seq desc
limit %b::bigint

-- :name items
select 0::bigint as place, c.seq
from {schema}.course c {joins}
where ({where}) and c.seq < %b::bigint
order by c.seq desc
limit %b::bigint

-- :name tagged_items
-- The same by a tag: its index has them in this order.
select 0::bigint as place, g.seq
from {schema}.tag g
cross join lateral (select * from {schema}.course c where c.seq = g.seq offset 0) c {joins}
where (g.tag, g.seq) <= (%b, %b::bigint) and g.tag >= %b and ({where})
order by g.tag desc, g.seq desc
limit %b::bigint

-- :name first_letters
-- The other way round, here and below: first died, or first enqueued, first.
select l.died_at as place, l.seq
from {schema}.letter l {joins}
where ({where}) and (l.died_at, l.seq) > (%b::bigint, %b::bigint)
order by l.died_at, l.seq
limit %b::bigint

-- :name first_walked_letters
select l.died_at as place, l.seq
from {schema}.letter l {joins}
where ({columns}, l.died_at, l.seq) >= ({values}, %b::bigint, %b::bigint) and ({columns}) <= ({values}) and ({where})
order by {columns}, l.died_at, l.seq
limit %b::bigint

-- :name first_items
select 0::bigint as place, c.seq
from {schema}.course c {joins}
where ({where}) and c.seq > %b::bigint
order by c.seq
limit %b::bigint

-- :name first_tagged_items
select 0::bigint as place, g.seq
from {schema}.tag g
cross join lateral (select * from {schema}.course c where c.seq = g.seq offset 0) c {joins}
where (g.tag, g.seq) >= (%b, %b::bigint) and g.tag <= %b and ({where})
order by g.tag, g.seq
limit %b::bigint

-- :name letters_join_item
-- What is walked is joined by the key, here and below, whatever the planner believes of a table that was empty when it
-- looked: the offset leaves it no choice.
cross join lateral (select * from {schema}.item i where i.seq = l.seq offset 0) i

-- :name letters_join_course
cross join lateral (select * from {schema}.course c where c.seq = l.seq offset 0) c

-- :name items_join_item
cross join lateral (select * from {schema}.item i where i.seq = c.seq offset 0) i

-- :name items_join_letter
left join lateral (
    select * from {schema}.letter l where l.seq >= c.seq and l.seq <= c.seq order by l.seq limit 1
) l on true

-- :name letters_join_terms
left join lateral (select * from {schema}.terms t where t.seq = l.seq offset 0) t on true

-- :name items_join_terms
left join lateral (select * from {schema}.terms t where t.seq = c.seq offset 0) t on true

-- :name oldest_letters
-- For amend and prune: earliest enqueued first.
select l.seq from {schema}.letter l {joins} where ({where}) order by l.seq limit %b::bigint;

-- :name oldest_items
select c.seq from {schema}.course c {joins} where ({where}) order by c.seq limit %b::bigint;

-- :name tagged
select g.seq from {schema}.tag g where g.tag = %b limit %b::bigint;

-- :name named
select i.id from {schema}.item i where i.id >= %b and i.id < %b order by i.id limit %b::bigint;

-- :name now
select {schema}.now_ms(%b::bigint);
