-- extend: prolongs leases that are still held, of items that run and of letters. One without a worker is held by nobody.
-- Inputs: numbers (0: look it up by id), ids, deliveries, each once, and for how long from now.
-- Outputs: places (from 1) of the lost, and with `asked` those that somebody wants cancelled.
-- Atomicity: one statement; repeating it changes nothing more.

-- :name function
create or replace function {schema}.extend(
    pinned bigint, seqs bigint[], ids text[], given integer[], ttl bigint
) returns table (place bigint, asked boolean)
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
    held bigint[];
    asked_of bigint[];
begin
    if ids is not null then
        seqs := array(
            select coalesce(nullif(o.seq, 0), (select i.seq from {schema}.item i where i.id = o.id), 0)
            from unnest(seqs, ids) with ordinality as o (seq, id, place)
            order by o.place
        );
    end if;
    with prolonged as (
        update {schema}.course c
        set lease_until = greatest(c.lease_until, now_at + ttl)
        from (
            select * from unnest(seqs, given) with ordinality as n (seq, delivery, place) order by n.seq
        ) o
        where c.seq = any (array[o.seq]) and c.deliveries = o.delivery and c.lease_until > now_at and c.worker <> ''
        returning o.place, c.ties
    )
    select coalesce(array_agg(p.place), '{}'), array_agg(p.place) filter (where p.ties & 32 <> 0)
    into held, asked_of from prolonged p;
    return query
    select o.place, false from generate_series(1, cardinality(seqs)::bigint) as o (place)
    where o.place <> all (held) order by o.place;
    if asked_of is not null then
        return query select o.place, true from unnest(asked_of) as o (place);
    end if;
end
$function$;

-- :name call
select place, asked from {schema}.extend(%b::bigint, %b, %b, %b, %b);
