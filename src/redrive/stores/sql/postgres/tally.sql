-- tally (and wait): summed counters of every declared queue, and its earliest due time by index.
-- Inputs: whether all members of families are wanted, and which; the pinned instant or null; queues. Outputs: one row per queue, by name; one per route; a span or null.
-- Atomicity: one statement, so one picture.

-- :name queues
-- An index serves each kind and level of a queue in due order, so the earliest of a queue is the least of a few. From one to
-- the next is one step in that index, and members that are not wanted are passed over together. Routes are rows whose name
-- is null.
with recursive asked (everything, named, heads) as materialized (
    select o.everything, o.named, array(
        select left(f.name, -1) from {schema}.queue f where not o.everything and right(f.name, 2) = ':*'
    )
    from (select %b::boolean as everything, %b::text[] as named) o
), counted as (
    select queue as name, sum(ready)::bigint as ready, sum(leased)::bigint as leased, sum(done)::bigint as done,
           sum(open)::bigint as open, sum(archived)::bigint as archived, sum(trash)::bigint as trash,
           sum(cancelled)::bigint as cancelled, sum(held)::bigint as held, sum(parked)::bigint as parked
    from (
        select * from {schema}.counter
        union all
        select m.* from {schema}.member_counter m, asked a where a.everything
        union all
        select m.* from {schema}.member_counter m, asked a where not a.everything and m.queue = any(a.named)
    ) k
    group by queue
), step (name, kind, level) as (
    (select queue, kind, level from {schema}.course
     where state = 'ready' and hold = 0 order by queue, kind, level limit 1)
    union all
    select next.queue, next.kind, next.level
    from (
        select s.*, left(s.name, strpos(s.name, ':')) = any(a.heads) as passed from step s, asked a
    ) step cross join lateral (
        select c.queue, c.kind, c.level from {schema}.course c
        where c.state = 'ready' and c.hold = 0 and (c.queue, c.kind, c.level) > (
            case when step.passed then left(step.name, strpos(step.name, ':') - 1) || ';' else step.name end,
            case when step.passed then '' else step.kind end, case when step.passed then -1 else step.level end
        )
        order by c.queue, c.kind, c.level limit 1
    ) next
), due (name, at) as (
    select step.name, min(first.due_at)
    from step cross join lateral (
        select c.due_at from {schema}.course c
        where c.state = 'ready' and c.hold = 0 and c.queue = step.name and c.kind = step.kind and c.level = step.level
        order by c.due_at limit 1
    ) first, asked a
    where left(step.name, strpos(step.name, ':')) <> all (a.heads)
    group by step.name
    union all
    select n.name, least(e.first_due, e.retry_due)
    from asked a, unnest(a.named) as n (name), lateral {schema}.earliest(n.name, null) e
    where left(n.name, strpos(n.name, ':')) = any (a.heads)
), routed as (
    select route, sum(n)::bigint as open from {schema}.cause group by route
)
select clock.now, q.*
from (select {schema}.now_ms(%b::bigint) as now) clock
left join (
    select name, coalesce(k.ready, 0), coalesce(k.leased, 0), coalesce(k.done, 0), coalesce(k.open, 0),
           coalesce(k.archived, 0), coalesce(k.trash, 0), coalesce(k.cancelled, 0), due.at,
           coalesce(s.paused, false), coalesce(s.paused_by, ''), coalesce(s.paused_reason, ''),
           coalesce(k.held, 0), coalesce(k.parked, 0), null::text, null::bigint,
           s.max_running, s.max_per_key, s.rate_count, s.rate_per, s.rate_burst, s.capacity, s.order_mode, s.policy,
           s.gate, s.keep, s.keep_results, s.retry_share, s.keep_trash, s.encrypt, coalesce(p.full_at, 0)
    from counted k full join (
        select q.* from {schema}.queue q, asked a
        where right(q.name, 2) = ':*' or left(q.name, strpos(q.name, ':')) <> all (a.heads) or q.name = any (a.named)
    ) s using (name) left join due using (name)
    left join {schema}.pace p on p.queue = name
    union all
    select null, coalesce(k.open, 0), null, null, null, null, null, null, null, null, null, null, null, null,
           name, s.capacity, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
    from (select route as name, open from routed) k full join {schema}.route s using (name)
    where coalesce(k.open, 0) <> 0 or s.capacity is not null
) q on true
order by 2, 16;

-- :name patience
-- How long until something of these queues may be leased; null if nothing will be by itself. Kinds as lease takes them.
select min({schema}.next_look({schema}.now_ms(%b::bigint), asked.name, {schema}.kinds_in(asked.kinds)))
       - {schema}.now_ms(%b::bigint)
from unnest(%b::text[], %b::text[]) as asked (name, kinds);

-- :name kinds
-- Of a queue: those of which something is due.
select distinct l.kind from {schema}.levels(%b, null, 0) as l
where exists (
    select 1 from {schema}.course c
    where c.state = 'ready' and c.hold = 0 and c.queue = %b and c.kind = l.kind and c.level = l.level
      and c.due_at <= {schema}.now_ms(%b::bigint)
)
order by 1;

-- :name earliest
-- The earliest due of a queue among first attempts or among retries.
create or replace function {schema}.earliest(of_queue text, of_kinds text[], out first_due bigint, out retry_due bigint)
language sql stable parallel safe
as $function$
    select min(d.at) filter (where l.level / 3 % 2 = 0), min(d.at) filter (where l.level / 3 % 2 = 1)
    from {schema}.levels(of_queue, of_kinds, 0) as l
    cross join lateral (
        select c.due_at from {schema}.course c
        where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = l.kind and c.level = l.level
        order by c.due_at limit 1
    ) d (at)
$function$;

-- :name opens_at
-- When something of a queue may be leased, by its due times, its rate and its gate.
create or replace function {schema}.opens_at(now_at bigint, of_queue text, of_kinds text[]) returns bigint
language plpgsql stable parallel safe
as $function$
#variable_conflict use_column
declare
    s {schema}.queue;
    g {schema}.gate;
    due record;
    opens bigint;
begin
    select * into due from {schema}.earliest(of_queue, of_kinds);
    if due.first_due is null and due.retry_due is null then
        return null;
    end if;
    s := {schema}.settings_for(of_queue, false);
    if s.name is null then
        return least(due.first_due, due.retry_due);
    end if;
    if s.paused or (s.max_running is not null and s.max_running <= {schema}.running_of(of_queue)) then
        return null;
    end if;
    if s.rate_count is not null then
        opens := (
            select p.full_at - (coalesce(s.rate_burst, greatest(1, s.rate_count * 1000 / s.rate_per)) - 1)
                   * greatest(1, s.rate_per * 1000 / s.rate_count)
            from {schema}.pace p where p.queue = of_queue
        );
    end if;
    if s.gate <> '' then
        select * into g from {schema}.gate o where o.name = s.gate;
        if g.interval is not null then
            opens := greatest(opens, g.next_at - (g.burst - 1) * g.interval);
        elsif g.share is not null and g.credit < 1000 and due.retry_due is not null then
            due.retry_due := greatest(due.retry_due, (g.floor_at + 999) / 1000);
        end if;
    end if;
    return greatest(least(due.first_due, due.retry_due), (opens + 999) / 1000);
end
$function$;
