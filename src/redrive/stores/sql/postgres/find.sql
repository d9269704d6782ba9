-- find: numbers of matching items in a stable order; `{where}` is the compiled selection with bound values, `{joins}`
-- are the tables it reads besides the one that is looked through. `{source}` is a query that gives all rows among which
-- they are. Its offset keeps the planner from choosing another way to them by what is asked of them: statistics may be
-- of a time when all or none were so.
-- Inputs: the source's values, the selection's, then the place to go on from and how many. Outputs: a place and a number
-- per match.
-- Atomicity: one statement together with get.whole or get.names, which read the items.

-- :name letters
-- Where no source is known to be the best, it is left to the planner.
select l.died_at as place, l.seq
from {schema}.letter l {joins}
where ({where}) and (l.died_at, l.seq) < (%b::bigint, %b::bigint)
order by l.died_at desc, l.seq desc
limit %b::bigint

-- :name sourced_letters
select l.died_at as place, l.seq
from ({source} offset 0) l {joins}
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
from ({source} offset 0) c {joins}
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

-- :name first_sourced_letters
select l.died_at as place, l.seq
from ({source} offset 0) l {joins}
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
from ({source} offset 0) c {joins}
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

-- :name oldest_letters
-- For amend and prune: earliest enqueued first.
select 0::bigint as place, l.seq from {schema}.letter l {joins} where ({where}) order by l.seq limit %b::bigint

-- :name oldest_sourced_letters
select 0::bigint as place, l.seq from ({source} offset 0) l {joins} where ({where}) order by l.seq limit %b::bigint

-- :name source_walk
select * from {schema}.course c where c.seq < %b::bigint order by c.seq desc

-- :name source_first_walk
select * from {schema}.course c where c.seq > %b::bigint order by c.seq

-- :name source_tagged_walk
select c.* from (
    select g.seq from {schema}.tag g
    where (g.tag, g.seq) <= (%b, %b::bigint) and g.tag >= %b order by g.tag desc, g.seq desc offset 0
) g
cross join lateral (select * from {schema}.course c where c.seq = g.seq offset 0) c

-- :name source_first_tagged_walk
select c.* from (
    select g.seq from {schema}.tag g
    where (g.tag, g.seq) >= (%b, %b::bigint) and g.tag <= %b order by g.tag, g.seq offset 0
) g
cross join lateral (select * from {schema}.course c where c.seq = g.seq offset 0) c

-- :name source_oldest_letters
select * from {schema}.letter l order by l.seq

-- :name source_letters_by
-- All that `{columns}` of equal `{values}`, in the order of their index.
select * from {schema}.letter l
where ({columns}) >= ({values}) and ({columns}) <= ({values}) and {also}
order by {columns}, l.died_at, l.seq

-- :name source_items_named
select c.* from (select n.seq from {schema}.item n where n.id = any(%b::text[]) offset 0) n
cross join lateral (select * from {schema}.course c where c.seq = n.seq offset 0) c

-- :name source_letters_named
-- Every index of letters has the number somewhere; only the key has it in this order.
select l.* from (select n.seq from {schema}.item n where n.id = any(%b::text[]) offset 0) n
cross join lateral (select * from {schema}.letter l where l.seq >= n.seq and l.seq <= n.seq order by l.seq limit 1) l

-- :name source_letters_numbered
select l.* from unnest(%b::bigint[]) n (seq)
cross join lateral (select * from {schema}.letter l where l.seq >= n.seq and l.seq <= n.seq order by l.seq limit 1) l

-- :name meets
-- Whether so many of the first of a source are all there are, or enough of them match. None of them is read before it is
-- asked for: it ends with the last that is wanted.
with looked_at as materialized ({source} limit %b::bigint)
select (select count(*) from (select 1 from looked_at c {joins} where ({where}) limit %b::bigint) m) >= %b::bigint
    or (select count(*) from looked_at) < %b::bigint;

-- :name meets_letters
with looked_at as materialized ({source} limit %b::bigint)
select (select count(*) from (select 1 from looked_at l {joins} where ({where}) limit %b::bigint) m) >= %b::bigint
    or (select count(*) from looked_at) < %b::bigint;

-- :name fewer_by
-- Whether fewer than so many are in an index of letters by what it begins with.
select count(*) < %b::bigint from (
    select 1 from {schema}.letter l
    where ({columns}) >= ({values}) and ({columns}) <= ({values}) and {also}
    order by {columns}, l.died_at, l.seq
    limit %b::bigint
) m;

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

-- :name tagged
select g.seq from {schema}.tag g where (g.tag, g.seq) >= (%b, 0) and g.tag <= %b order by g.tag, g.seq limit %b::bigint;

-- :name named
select i.id from {schema}.item i where i.id >= %b and i.id < %b order by i.id limit %b::bigint;

-- :name now
select {schema}.now_ms(%b::bigint);
