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

-- :name letters_join_item
join {schema}.item i on i.seq = l.seq

-- :name letters_join_course
join {schema}.course c on c.seq = l.seq

-- :name items_join_item
join {schema}.item i on i.seq = c.seq

-- :name items_join_letter
left join {schema}.letter l on l.seq = c.seq

-- :name letters_join_terms
left join {schema}.terms t on t.seq = l.seq

-- :name items_join_terms
left join {schema}.terms t on t.seq = c.seq

-- :name oldest_letters
-- For amend and prune: earliest enqueued first.
select l.seq from {schema}.letter l {joins} where ({where}) order by l.seq limit %b::bigint;

-- :name oldest_items
select c.seq from {schema}.course c {joins} where ({where}) order by c.seq limit %b::bigint;

-- :name tagged
select g.seq from {schema}.tag g where g.tag = %b limit %b::bigint;

-- :name now
select {schema}.now_ms(%b::bigint);
