-- put: new items, all or none; an id that exists or was pruned is left alone.
-- Inputs: the items as arrays, in order. Outputs: the places (from 1) of those that were there already.
-- Atomicity: one statement. Two puts of the same id wait for each other, and one of them finds it there.

-- :name function
create or replace function {schema}.put(
    pinned bigint, ids text[], queues text[], delays bigint[], crcs bigint[], packings smallint[], bodies bytea[]
) returns table (place bigint)
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
    numbers bigint[] := array(
        select nextval('{schema}.item_seq') from generate_series(1, cardinality(ids))
    );
    added bigint[];
begin
    if cardinality(ids) >= 50 then
        -- As if all were new, which makes the insert itself cheaper. Of a few it is not worth a subtransaction.
        begin
            insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body)
            select o.seq, o.id, o.queue, now_at, o.crc, o.packing, o.body
            from unnest(numbers, ids, queues, crcs, packings, bodies) as o (seq, id, queue, crc, packing, body);
            added := numbers;
        exception when unique_violation then
            added := null;
        end;
    end if;
    if added is null then
        with new as (
            insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body)
            select o.seq, o.id, o.queue, now_at, o.crc, o.packing, o.body
            from unnest(numbers, ids, queues, crcs, packings, bodies) as o (seq, id, queue, crc, packing, body)
            on conflict (id) do nothing
            returning seq
        )
        select coalesce(array_agg(seq), '{}') into added from new;
    end if;
    -- After the insert, which waits for a prune of the same id: only then is its tombstone to be seen.
    if exists (select 1 from {schema}.tombstone) then
        with gone as (
            delete from {schema}.item i
            using unnest(added) as o (seq)
            where i.seq = o.seq and exists (select 1 from {schema}.tombstone t where t.id = i.id)
            returning i.seq
        )
        select array(select unnest(added) except select seq from gone) into added;
    end if;
    if cardinality(added) = cardinality(ids) then
        insert into {schema}.course (seq, queue, state, due_at, renewed_at)
        select o.seq, o.queue, 'ready', now_at + o.delay, now_at
        from unnest(numbers, queues, delays) as o (seq, queue, delay);
        insert into {schema}.counter (queue, ready)
        select o.queue, count(*) from unnest(queues) as o (queue) group by o.queue;
        return;
    end if;
    with new as (
        insert into {schema}.course (seq, queue, state, due_at, renewed_at)
        select o.seq, o.queue, 'ready', now_at + o.delay, now_at
        from unnest(numbers, queues, delays) as o (seq, queue, delay)
        where o.seq = any (added)
        returning queue
    )
    insert into {schema}.counter (queue, ready)
    select queue, count(*) from new group by queue;
    return query
    select o.place from unnest(numbers) with ordinality as o (seq, place)
    where o.seq <> all (added) order by o.place;
end
$function$;

-- :name call
select place from {schema}.put(%b::bigint, %b, %b, %b, %b, %b, %b);
