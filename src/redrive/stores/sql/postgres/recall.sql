-- recall: letters as they were when they were replayed, and back to them.
-- Inputs: numbers of items as an array. Outputs: what is kept of them.
-- Atomicity: part of the transaction of amend, which has locked the lines and courses of the items.

-- :name keep
-- Before anything of the replay is written. role: 1 the head of its order key, 2 the gap of it.
insert into {schema}.recall (
    seq, deliveries, due_at, renewed_at, attempt, errors, crashes, last_chance, ended_at, queue, reason, died_at,
    disposition, cause, error, error_short, category, rule, failure, route, place, gap, role
)
select c.seq, c.deliveries, c.due_at, c.renewed_at, c.attempt, c.errors, c.crashes, c.last_chance, c.ended_at, c.queue,
       l.reason, l.died_at, l.disposition, l.cause, l.error, l.error_short, l.category, l.rule, l.failure, l.route,
       coalesce(t.place, 0), coalesce(t.gap, ''),
       case when n.head = c.seq then 1 when n.gap = (select i.id from {schema}.item i where i.seq = c.seq) then 2 else 0 end
from unnest(%b::bigint[]) as o (seq)
join {schema}.course c on c.seq = any (array[o.seq])
cross join lateral (
    select n.* from {schema}.letter n where n.seq >= c.seq and n.seq <= c.seq order by n.seq limit 1
) l
left join {schema}.terms t on t.seq = any (array[o.seq]) and t.order_key <> ''
left join {schema}.line n on n.queue = any (array[t.queue]) and n.key = t.order_key
on conflict (seq) do update
set (
    deliveries, due_at, renewed_at, attempt, errors, crashes, last_chance, ended_at, queue, reason, died_at,
    disposition, cause, error, error_short, category, rule, failure, route, place, gap, role
) = (
    excluded.deliveries, excluded.due_at, excluded.renewed_at, excluded.attempt, excluded.errors, excluded.crashes,
    excluded.last_chance, excluded.ended_at, excluded.queue, excluded.reason, excluded.died_at, excluded.disposition,
    excluded.cause, excluded.error, excluded.error_short, excluded.category, excluded.rule, excluded.failure,
    excluded.route, excluded.place, excluded.gap, excluded.role
);

-- :name deliveries
-- Of these items when they were replayed; none for an item of which no letter is kept.
select r.seq, r.deliveries from {schema}.recall r where r.seq = any(%b::bigint[]);

-- :name die
-- The items are letters again, in the queues in which they wait. Gives what is not written yet.
with fallen as (
    update {schema}.course c
    set state = 'dead', hold = 0, ties = c.ties & ~256, due_at = r.due_at, renewed_at = r.renewed_at, attempt = r.attempt, errors = r.errors,
        crashes = r.crashes, last_chance = r.last_chance, ended_at = r.ended_at, replays = c.replays - 1,
        level = r.crashes * 6 + case when r.errors + r.crashes + c.replays > 1 then 3 else 0 end + c.priority
    from unnest(%b::bigint[]) as o (seq) join {schema}.recall r on r.seq = any (array[o.seq])
    where c.seq = any (array[o.seq])
    returning c.seq, c.queue
), letters as (
    insert into {schema}.letter (
        seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure, route
    )
    select f.seq, f.queue, r.reason, r.died_at, r.disposition, r.cause, r.error, r.error_short, r.category, r.rule,
           r.failure, r.route
    from fallen f join {schema}.recall r on r.seq = any (array[f.seq])
), gone as (
    delete from {schema}.recall r using fallen f where r.seq = any (array[f.seq])
    returning r.seq, r.queue, r.disposition, r.cause, r.route, r.place, r.gap, r.role::bigint
)
select g.* from gone g;

-- :name untie
select {schema}.untie(%b::bigint, %b::bigint[], %b::smallint[], %b::bigint[], false, %b::integer, true);

-- :name call_put_back
select {schema}.put_back(%b::bigint[], %b::bigint[], %b::text[], %b::bigint[]);

-- :name put_back
-- Recalled letters, in the order of their places, which they have again. One that was the head of its order key keeps
-- the others back if no other item has come to the front; one that was the gap is it, if there is none.
create or replace function {schema}.put_back(seqs bigint[], places bigint[], gaps text[], roles bigint[]) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    r record;
begin
    update {schema}.terms t set place = o.place, gap = o.gap
    from unnest(seqs, places, gaps) as o (seq, place, gap)
    where t.seq = any (array[o.seq]) and t.order_key <> '';
    for r in
        select o.seq, o.role, i.id, t.queue, t.order_key as key,
               coalesce((select q.order_mode from {schema}.settings_for(t.queue, false) q), 'block') as mode
        from unnest(seqs, roles) with ordinality as o (seq, role, nth)
        join {schema}.item i on i.seq = any (array[o.seq])
        join {schema}.terms t on t.seq = any (array[o.seq]) and t.order_key <> ''
        where o.role > 0
        order by o.nth
    loop
        if r.role = 2 then
            insert into {schema}.line as n (queue, key, gap) values (r.queue, r.key, r.id)
            on conflict (queue, key) do update set gap = excluded.gap where n.gap = '';
        elsif r.mode <> 'skip' then
            insert into {schema}.line as n (queue, key, head, status)
            values (r.queue, r.key, r.seq, case r.mode when 'park' then 2 else 1 end)
            on conflict (queue, key) do update set head = excluded.head, status = excluded.status where n.head is null;
        end if;
    end loop;
end
$function$;
