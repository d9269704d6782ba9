-- causes: open letters by cause and queue, most first, each with its earliest letter as the example.
-- Inputs: a queue or null, how many. Outputs: one row per cause and queue.
-- Atomicity: one statement, so one picture; counts are summed, the two instants come from the ends of an index.

-- :name causes
with counted as materialized (
    select cause, queue, sum(n)::bigint as n
    from {schema}.cause
    where %b::text is null or queue = %b
    group by cause, queue
    having sum(n) > 0
    order by n desc, cause, queue
    limit %b::bigint
)
select counted.queue, counted.n, first.failure, first.died_at, last.died_at
from counted
cross join lateral (
    select l.failure, l.died_at from {schema}.letter l
    where l.cause = counted.cause and l.queue = counted.queue and l.disposition = 'open'
    order by l.died_at, l.seq
    limit 1
) first
cross join lateral (
    select l.died_at from {schema}.letter l
    where l.cause = counted.cause and l.queue = counted.queue and l.disposition = 'open'
    order by l.died_at desc, l.seq desc
    limit 1
) last
order by counted.n desc, counted.cause, counted.queue;
