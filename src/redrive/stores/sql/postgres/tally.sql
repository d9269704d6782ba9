-- tally (and wait): summed counters of every declared queue, and its earliest due time by index.
-- Inputs: the pinned instant or null; queues. Outputs: one row per queue, by name; a span or null.
-- Atomicity: one statement, so one picture.

-- :name queues
-- An index serves each number of crashes in due order, so the earliest of a queue is the least of a few.
with counted as (
    select queue as name, sum(ready)::bigint as ready, sum(leased)::bigint as leased, sum(done)::bigint as done,
           sum(open)::bigint as open, sum(archived)::bigint as archived, sum(trash)::bigint as trash,
           sum(cancelled)::bigint as cancelled
    from {schema}.counter group by queue
)
select clock.now, q.*
from (select {schema}.now_ms(%b::bigint) as now) clock
left join (
    select name, coalesce(k.ready, 0), coalesce(k.leased, 0), coalesce(k.done, 0), coalesce(k.open, 0),
           coalesce(k.archived, 0), coalesce(k.trash, 0), coalesce(k.cancelled, 0),
           case when k.ready > 0 then ({oldest_due}) end,
           coalesce(s.paused, false), coalesce(s.paused_by, ''), coalesce(s.paused_reason, '')
    from counted k full join {schema}.queue s using (name)
) q on true
order by q.name;

-- :name oldest_due
-- Of the queue `name`.
with recursive level (crashes) as (
    select min(c.crashes) from {schema}.course c where c.state = 'ready' and c.queue = name
    union all
    select (
        select min(c.crashes) from {schema}.course c
        where c.state = 'ready' and c.queue = name and c.crashes > level.crashes
    ) from level where level.crashes is not null
)
select min((
    select min(c.due_at) from {schema}.course c
    where c.state = 'ready' and c.queue = name and c.crashes = level.crashes
)) from level where level.crashes is not null

-- :name patience
-- How long until something of these queues is due that is not paused.
select min(({oldest_due})) - {schema}.now_ms(%b::bigint)
from unnest(%b::text[]) as asked (name)
where not exists (select from {schema}.queue s where s.name = asked.name and s.paused);
