-- reclaim: takes over leases under a new delivery number; what else the row says is still about the lost one.
-- Inputs: queues, the new length, how many at most; ids or null; whether also leases that have not expired.
-- Outputs: rows as those of lease, longest expired first.
-- Atomicity: one statement. Rows in other hands are passed over, so two callers never get the same item. Named ones are
--   waited for: whoever names an item wants that one.

-- :name function
create or replace function {schema}.reclaim(
    pinned bigint, queues text[], ttl bigint, most bigint, ids text[], force boolean
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $function$
#variable_conflict use_column
declare
    now_at bigint := {schema}.now_ms(pinned);
    latest bigint := case when force then 9223372036854775807 else now_at end;
    chosen bigint[];
begin
    if ids is null then
        chosen := array(
            select p.seq from (
                select c.seq, c.lease_until
                from {schema}.course c
                where c.state = 'leased' and c.queue = any (queues) and c.lease_until <= latest
                order by c.lease_until, c.seq
                limit most
                for no key update of c skip locked
            ) p
        );
        if exists (select 1 from unnest(queues) as o (name) where right(o.name, 2) = ':*') then
            chosen := array(
                select c.seq from {schema}.course c
                where c.seq = any (chosen || array(
                    select p.seq from unnest(queues) as o (name)
                    cross join lateral (
                        select n.seq from {schema}.course n
                        where n.state = 'leased' and n.queue > left(o.name, -1) and n.queue < left(o.name, -2) || ';'
                          and n.lease_until <= latest
                        order by n.lease_until, n.seq
                        limit most
                        for no key update of n skip locked
                    ) p
                    where right(o.name, 2) = ':*'
                ))
                order by c.lease_until, c.seq
                limit most
            );
        end if;
    else
        chosen := array(
            select p.seq from (
                select c.seq, c.lease_until
                from {schema}.item i
                join {schema}.course c on c.seq = any (array[i.seq])
                where i.id = any (ids) and (
                    c.queue = any (queues) or {schema}.families_of(array[c.queue]) && queues
                ) and c.lease_until <= latest and c.state <> 'dead'
                order by c.lease_until, c.seq
                limit most
                for no key update of c
            ) p
        );
    end if;
    return query
    with taken as (
        -- alone 1 becomes 2: still a lone crash to judge, but no longer in the hands of the worker it names.
        update {schema}.course c
        set deliveries = c.deliveries + 1, lease_until = now_at + ttl,
            alone = case c.alone when 0 then 0 else 2 end
        from unnest(chosen) with ordinality as o (seq, place)
        where c.seq = any (array[o.seq])
        returning c.*, o.place
    )
    select 0::smallint, c.seq, i.id, c.queue, i.body, i.crc, i.packing, i.enqueued_at,
               c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
               c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until,
               c.priority, case when c.ties & 128 <> 0 then {schema}.labelled(c.seq, t.body) else t.body end,
               t.gap, t.cancel, c.kind, i.release
    from taken c
    join {schema}.item i on i.seq = any (array[c.seq])
    left join {schema}.terms t on t.seq = any (array[case when c.ties & 64 <> 0 then c.seq end])
    order by c.place;
end
$function$;

-- :name call
select * from {schema}.reclaim(%b::bigint, %b, %b, %b, %b, %b);
