-- tally (and wait): summed counters of every declared queue, and its earliest due time by index.
-- Inputs: the pinned instant or null; queues. Outputs: one row per queue, by name; a span or null.
-- Atomicity: one statement, so one picture.

-- :name queues
-- An index serves each number of crashes of a queue in due order, so the earliest of a queue is the least of a few. From
-- one such level to the next is one step in that index.
with recursive counted as (
    select queue as name, sum(ready)::bigint as ready, sum(leased)::bigint as leased, sum(done)::bigint as done,
           sum(open)::bigint as open, sum(archived)::bigint as archived, sum(trash)::bigint as trash,
           sum(cancelled)::bigint as cancelled
    from {schema}.counter group by queue
), level (name, crashes) as (
    (select queue, crashes from {schema}.course where state = 'ready' order by queue, crashes limit 1)
    union all
    select next.queue, next.crashes
    from level cross join lateral (
        select c.queue, c.crashes from {schema}.course c
        where c.state = 'ready' and (c.queue, c.crashes) > (level.name, level.crashes)
        order by c.queue, c.crashes limit 1
    ) next
), due (name, at) as (
    select level.name, min(first.due_at)
    from level cross join lateral (
        select c.due_at from {schema}.course c
        where c.state = 'ready' and c.queue = level.name and c.crashes = level.crashes
        order by c.due_at limit 1
    ) first
    group by level.name
)
select clock.now, q.*
from (select {schema}.now_ms(%b::bigint) as now) clock
left join (
    select name, coalesce(k.ready, 0), coalesce(k.leased, 0), coalesce(k.done, 0), coalesce(k.open, 0),
           coalesce(k.archived, 0), coalesce(k.trash, 0), coalesce(k.cancelled, 0), due.at,
           coalesce(s.paused, false), coalesce(s.paused_by, ''), coalesce(s.paused_reason, '')
    from counted k full join {schema}.queue s using (name) left join due using (name)
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
