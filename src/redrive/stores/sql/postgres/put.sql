-- put: new items, all or none; an id that exists or was pruned is left alone.
-- Inputs: the items as arrays, in order. Those with terms are named by their place (from 1) in bound_places, with one
--   element of each array up to term_bodies; what they wait for is in after_places and after_ids. Null: none has any.
--   kinds, releases: null where none has any. refuses: whether a full queue refuses.
-- Outputs: rows with note 0 are places of those that were there already, with 1 of those whose dedupe key another
--   (`other`) holds. One row with note 2 (`other` is the unknown item it waits for), 4 (it will never be done) or 3 (the
--   queue `other` is full, and `place` were too many) or 5 (the queue `other` is encrypted, and a body came in clear) says
--   that nothing was added.
-- Atomicity: one statement. Two puts of the same id wait for each other, and one of them finds it there. Locks come in
--   this order: queues with a capacity, lines, awaited courses by number, dedupe keys. In a caller's own transaction
--   they are kept until it ends: whoever puts under the same key, and the end of the line's head or of an awaited item,
--   waits for that. Workers do not: leases lock none of them.

-- :name function
create or replace function {schema}.put(
    pinned bigint, ids text[], queues text[], delays bigint[], crcs bigint[], packings smallint[], bodies bytea[],
    ats bigint[], priorities smallint[], bound_places integer[], order_keys text[], limit_keys text[], scopes text[],
    dedupe_keys text[], windows bigint[], dies smallint[], term_bodies bytea[], after_places integer[],
    after_ids text[], kinds text[], releases text[], refuses boolean
) returns table (place bigint, note smallint, other text, fill bigint, capacity bigint)
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
    any_buried boolean;
    any_limited boolean;
    any_encrypted boolean;
begin
    if cardinality(bound_places) > 0 then
        return query
        select * from {schema}.put_bound(
            now_at, numbers, ids, queues, delays, crcs, packings, bodies, ats, priorities, bound_places, order_keys,
            limit_keys, scopes, dedupe_keys, windows, dies, term_bodies, after_places, after_ids, kinds, releases,
            refuses
        );
        return;
    end if;
    if cardinality(ids) >= 50 then
        -- As if all were new, which makes the insert itself cheaper. Of a few it is not worth a subtransaction.
        begin
            insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body, release)
            select o.seq, o.id, o.queue, now_at, o.crc, o.packing, o.body, coalesce(o.release, '')
            from unnest(numbers, ids, queues, crcs, packings, bodies, releases)
                 as o (seq, id, queue, crc, packing, body, release);
            added := numbers;
        exception when unique_violation then
            added := null;
        end;
    end if;
    if added is null then
        with new as (
            insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body, release)
            select o.seq, o.id, o.queue, now_at, o.crc, o.packing, o.body, coalesce(o.release, '')
            from unnest(numbers, ids, queues, crcs, packings, bodies, releases)
                 as o (seq, id, queue, crc, packing, body, release)
            on conflict (id) do nothing
            returning seq
        )
        select coalesce(array_agg(seq), '{}') into added from new;
    end if;
    -- After the insert, which waits for a prune of the same id: only then is its tombstone to be seen.
    select exists (select 1 from {schema}.tombstone),
           refuses and (exists (
               select 1 from {schema}.queue q where q.capacity is not null and q.name = any (queues)
           ) or exists (
               select 1 from {schema}.queue q where q.capacity is not null and right(q.name, 2) = ':*'
           )),
           exists (select 1 from {schema}.queue q where q.encrypt and q.name = any (queues))
    into any_buried, any_limited, any_encrypted;
    if any_encrypted then
        return query
        select 0::bigint, 5::smallint, o.name, null::bigint, null::bigint
        from {schema}.in_clear(queues, packings) as o (name) where o.name is not null;
        if found then
            delete from {schema}.item i where i.seq = any (added);
            return;
        end if;
    end if;
    if any_buried then
        with gone as (
            delete from {schema}.item i
            where i.seq = any (added) and exists (select 1 from {schema}.tombstone t where t.id = i.id offset 0)
            returning i.seq
        )
        select array(select unnest(added) except select seq from gone) into added;
    end if;
    if any_limited then
        return query
        select o.more, 3::smallint, o.queue, o.fill, o.capacity
        from {schema}.crowded(array(
            select n.queue from unnest(numbers, queues) as n (seq, queue) where n.seq = any (added)
        )) as o;
        if found then
            delete from {schema}.item i where i.seq = any (added);
            return;
        end if;
    end if;
    if cardinality(added) = cardinality(ids) then
        insert into {schema}.course (seq, queue, state, due_at, renewed_at, priority, level, kind)
        select o.seq, o.queue, 'ready', greatest(now_at + o.delay, o.at), now_at, coalesce(o.priority, 0),
               coalesce(o.priority, 0), coalesce(o.kind, '')
        from unnest(numbers, queues, delays, ats, priorities, kinds) as o (seq, queue, delay, at, priority, kind);
        insert into {schema}.counter (queue, ready)
        select o.queue, count(*) from unnest(queues) as o (queue) group by o.queue;
        return;
    end if;
    with new as (
        insert into {schema}.course (seq, queue, state, due_at, renewed_at, priority, level, kind)
        select o.seq, o.queue, 'ready', greatest(now_at + o.delay, o.at), now_at, coalesce(o.priority, 0),
               coalesce(o.priority, 0), coalesce(o.kind, '')
        from unnest(numbers, queues, delays, ats, priorities, kinds) as o (seq, queue, delay, at, priority, kind)
        where o.seq = any (added)
        returning queue
    )
    insert into {schema}.counter (queue, ready)
    select queue, count(*) from new group by queue;
    return query
    select o.place, 0::smallint, null::text, null::bigint, null::bigint
    from unnest(numbers) with ordinality as o (seq, place)
    where o.seq <> all (added) order by o.place;
end
$function$;

-- :name in_clear
-- The first by name of these queues that is encrypted, and gets a body which is not.
create or replace function {schema}.in_clear(of_queues text[], packings smallint[]) returns text
language sql stable parallel safe
as $function$
    select min(q.name)
    from unnest(of_queues, packings) as o (name, packing)
    join {schema}.queue q on q.name = o.name and q.encrypt
    where o.packing <> 2
$function$;

-- :name crowded
-- The first by name of these queues (named once for each new item) that has no room for them. Their rows stay locked,
-- so that nobody else fills them meanwhile.
create or replace function {schema}.crowded(of_queues text[])
returns table (more bigint, queue text, fill bigint, capacity bigint)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    perform 1 from {schema}.queue q
    where q.capacity is not null and q.name = any (of_queues || {schema}.families_of(of_queues))
    order by q.name for no key update;
    return query
    select n.more, q.name, k.fill, q.capacity
    from (
        select o.name, count(*) as more from unnest(of_queues) as o (name) group by o.name
        union all
        select split_part(o.name, ':', 1) || ':*', count(*) from unnest(of_queues) as o (name)
        where strpos(o.name, ':') > 1 group by 1
    ) n
    join {schema}.queue q on q.name = n.name and q.capacity is not null
    cross join lateral (select {schema}.fill_of(n.name) as fill) k
    where k.fill + n.more > q.capacity
    order by q.name limit 1;
end
$function$;

-- :name put_bound
-- As put, where some have terms. First what others may hold is locked; then it is judged by new statements, which see
-- what was committed meanwhile. A refusal undoes what was written here and leaves the caller's transaction whole.
create or replace function {schema}.put_bound(
    now_at bigint, numbers bigint[], ids text[], queues text[], delays bigint[], crcs bigint[], packings smallint[],
    bodies bytea[], ats bigint[], priorities smallint[], bound_places integer[], order_keys text[], limit_keys text[],
    scopes text[], dedupe_keys text[], windows bigint[], dies smallint[], term_bodies bytea[], after_places integer[],
    after_ids text[], kinds text[], releases text[], refuses boolean
) returns table (place bigint, note smallint, other text, fill bigint, capacity bigint)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    twins bigint[] := '{}';
    holders text[] := '{}';
    doomed bigint[] := '{}';
    refused record;
begin
    begin
        if refuses then
            perform 1 from {schema}.queue q
            where q.capacity is not null and q.name = any (queues || {schema}.families_of(queues))
            order by q.name for no key update;
        end if;
        select 0::bigint as place, 5::smallint as note, o.name as other, 0::bigint as fill, 0::bigint as capacity
        into refused from {schema}.in_clear(queues, packings) as o (name) where o.name is not null;
        if found then
            raise exception 'refused' using errcode = 'RD001';
        end if;
        insert into {schema}.line as l (queue, key)
        select distinct queues[o.place], o.key from unnest(bound_places, order_keys) as o (place, key)
        where o.key <> '' order by 1, 2
        on conflict (queue, key) do update set waiting = l.waiting;
        if cardinality(after_ids) > 0 then
            perform 1 from {schema}.course c
            where c.seq = any (array(select i.seq from {schema}.item i where i.id = any (after_ids)))
            order by c.seq for no key update;
        end if;
        insert into {schema}.item (seq, id, queue, enqueued_at, crc, packing, body, release)
        select o.seq, o.id, o.queue, now_at, o.crc, o.packing, o.body, coalesce(o.release, '')
        from unnest(numbers, ids, queues, crcs, packings, bodies, releases)
             as o (seq, id, queue, crc, packing, body, release)
        on conflict (id) do nothing;
        delete from {schema}.item i
        where i.seq = any (numbers) and exists (select 1 from {schema}.tombstone t where t.id = i.id offset 0);
        if exists (select 1 from unnest(dedupe_keys) as o (key) where o.key <> '') then
            select coalesce(array_agg(k.seq), '{}'), coalesce(array_agg(k.holder), '{}') into twins, holders
            from (
                select array_agg(i.seq order by o.place) as seqs, array_agg(i.id order by o.place) as ids,
                       array_agg(o.scope order by o.place) as scopes, array_agg(o.key order by o.place) as keys,
                       array_agg(case when o.span >= 0 then now_at + o.span end order by o.place) as untils
                from unnest(bound_places, scopes, dedupe_keys, windows) as o (place, scope, key, span)
                join {schema}.item i on i.seq = any (array[numbers[o.place]])
                where o.key <> ''
            ) a
            cross join lateral {schema}.take_keys(now_at, a.seqs, a.ids, a.scopes, a.keys, a.untils) k
            where a.seqs is not null;
            delete from {schema}.item i where i.seq = any (twins);
        end if;
        if cardinality(after_ids) > 0 then
            select o.place::bigint as place, o.id as other,
                   case when i.seq is null and t.id is null then 2 else 4 end::smallint as note, 0::bigint as fill,
                   0::bigint as capacity
            into refused
            from unnest(after_places, after_ids) with ordinality as o (place, id, nth)
            left join {schema}.item i on i.id = any (array[o.id])
            left join {schema}.course c on c.seq = any (array[i.seq])
            left join {schema}.tombstone t on t.id = any (array[case when i.seq is null then o.id end])
            where exists (select 1 from {schema}.item n where n.seq = numbers[o.place] offset 0) and (
                (i.seq is null and t.id is null)
                or (coalesce(c.state = 'cancelled', t.state <> 'done', false) and o.place <> all (array(
                    select b.place from unnest(bound_places, dies) as b (place, dies) where b.dies = 1
                )))
            )
            order by o.nth limit 1;
            if found then
                raise exception 'refused' using errcode = 'RD001';
            end if;
        end if;
        if refuses then
            select o.more as place, 3::smallint as note, o.queue as other, o.fill, o.capacity into refused
            from {schema}.crowded(array(
                select i.queue from {schema}.item i where i.seq = any (numbers)
            )) as o;
            if found then
                raise exception 'refused' using errcode = 'RD001';
            end if;
        end if;
        if cardinality(after_ids) > 0 then
            doomed := {schema}.await_all(
                numbers, after_places, after_ids,
                array(select numbers[o.place] from unnest(bound_places, dies) as o (place, dies) where o.dies = 1)
            );
        end if;
        perform {schema}.enter_bound(
            now_at, numbers, queues, delays, ats, priorities, bound_places, order_keys, limit_keys, scopes, dedupe_keys,
            windows, dies, term_bodies, after_places, after_ids, kinds
        );
        if cardinality(doomed) > 0 then
            perform {schema}.die(now_at, doomed);
            perform {schema}.untie(
                now_at, doomed, array_fill(2::smallint, array[cardinality(doomed)]), '{}', false,
                (select bit_or(c.ties)::integer from {schema}.course c where c.seq = any (doomed)), true
            );
        end if;
    exception when sqlstate 'RD001' then
        return query select refused.place, refused.note, refused.other, refused.fill, refused.capacity;
        return;
    end;
    return query
    select o.place, 0::smallint, null::text, null::bigint, null::bigint
    from unnest(numbers) with ordinality as o (seq, place)
    where not exists (select 1 from {schema}.item i where i.seq = o.seq offset 0) and o.seq <> all (twins)
    union all
    select array_position(numbers, o.seq)::bigint, 1::smallint, o.holder, null::bigint, null::bigint
    from unnest(twins, holders) as o (seq, holder)
    order by 1;
end
$function$;

-- :name await_all
-- Who of these waits for whom, as far as it is there. Gives those that wait for one that is dead or cancelled, and die
-- with it.
create or replace function {schema}.await_all(
    numbers bigint[], after_places integer[], after_ids text[], dying bigint[]
) returns bigint[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    doomed bigint[];
begin
    with asked as materialized (
        select distinct n.seq as waiting, coalesce(i.seq, 0) as awaited, coalesce(c.state, t.state, 'ready') as state
        from unnest(after_places, after_ids) as o (place, id)
        cross join lateral (select i.seq from {schema}.item i where i.seq = numbers[o.place] offset 0) n
        left join {schema}.item i on i.id = any (array[o.id])
        left join {schema}.course c on c.seq = any (array[i.seq])
        left join {schema}.tombstone t on t.id = any (array[o.id])
    ), bound as (
        insert into {schema}.edge (awaited, waiting)
        select distinct a.awaited, a.waiting from asked a where a.state <> 'done'
    ), marked as (
        update {schema}.course c set ties = c.ties | 8
        from (select distinct awaited from asked where state <> 'done') a
        where c.seq = any (array[a.awaited]) and c.ties & 8 = 0
    )
    select coalesce(array_agg(distinct a.waiting), '{}') into doomed
    from asked a where a.state in ('dead', 'cancelled') and a.waiting = any (dying);
    return doomed;
end
$function$;

-- :name enter_bound
-- Courses, terms and places in lines of those that are there, and their counters. What is looked up is looked up for each
-- by an index, however many come at once.
create or replace function {schema}.enter_bound(
    now_at bigint, numbers bigint[], queues text[], delays bigint[], ats bigint[], priorities smallint[],
    bound_places integer[], order_keys text[], limit_keys text[], scopes text[], dedupe_keys text[], windows bigint[],
    dies smallint[], term_bodies bytea[], after_places integer[], after_ids text[], kinds text[]
) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    nth_of integer[] := array_fill(null::integer, array[cardinality(numbers)]);
    waits boolean[] := array_fill(false, array[cardinality(numbers)]);
    -- The lines are locked: whoever comes later has greater numbers.
    places bigint[] := array(
        select nextval('{schema}.item_seq') from unnest(order_keys) as o (key) where o.key <> ''
    );
    place_of bigint[];
    place integer;
    taken integer := 0;
begin
    -- By place: which of the bound it is, and whether it waits for others.
    for nth in 1 .. cardinality(bound_places) loop
        nth_of[bound_places[nth]] := nth;
        if order_keys[nth] <> '' then
            taken := taken + 1;
            place_of[nth] := places[taken];
        end if;
    end loop;
    foreach place in array after_places loop
        waits[place] := true;
    end loop;
    with there as materialized (
        select i.seq, i.queue, o.place, o.nth, coalesce(order_keys[o.nth], '') as key,
               greatest(now_at + o.delay, o.at) as due_at, coalesce(o.priority, 0) as priority,
               coalesce(o.kind, '') as kind
        from unnest(numbers, delays, ats, priorities, nth_of, kinds) with ordinality
             as o (seq, delay, at, priority, nth, kind, place)
        join {schema}.item i on i.seq = any (array[o.seq])
    ), placed as materialized (
        select t.*, l.there, l.head, l.gap, l.status,
               row_number() over (partition by t.queue, t.key order by t.place) as ahead
        from there t
        left join lateral (
            select true as there, n.head, n.gap, n.status from {schema}.line n
            where n.queue = t.queue and n.key = case when t.key <> '' then t.key end offset 0
        ) l on true
    ), lined as materialized (
        select p.*, place_of[p.nth] as at_place, p.there is true and p.head is null and p.ahead = 1 as leads,
               p.there is true and (p.head is not null or p.ahead > 1) as follows
        from placed p
    ), behind as (
        insert into {schema}.follower (queue, key, place, seq)
        select n.queue, n.key, n.at_place, n.seq from lined n where n.follows
    ), led as (
        update {schema}.line l
        set head = coalesce(n.head, l.head), waiting = l.waiting + n.behind
        from (
            select queue, key, max(seq) filter (where leads) as head, count(*) filter (where follows) as behind
            from lined where there group by queue, key
        ) n
        where l.queue = any (array[n.queue]) and l.key = n.key
    ), kept as (
        insert into {schema}.terms (
            seq, queue, order_key, place, limit_key, scope, dedupe_key, until, after, dies, body, gap
        )
        select n.seq, n.queue, n.key, coalesce(n.at_place, 0), limit_keys[n.nth], scopes[n.nth], dedupe_keys[n.nth],
               case when windows[n.nth] >= 0 then now_at + windows[n.nth] end, '{}', dies[n.nth] = 1,
               term_bodies[n.nth], case when n.leads then n.gap else '' end
        from lined n where n.nth is not null
    ), entered as (
        insert into {schema}.course (seq, queue, state, due_at, renewed_at, priority, level, kind, hold, ties)
        select n.seq, n.queue, 'ready', n.due_at, now_at, n.priority, n.priority, n.kind,
               case when exists (select 1 from {schema}.edge e where e.waiting = n.seq offset 0) then 1
                    when n.follows then 2 else 0 end,
               case when n.key <> '' then 1 else 0 end + case when dedupe_keys[n.nth] <> '' then 2 else 0 end
               + case when waits[n.place] then 4 else 0 end
               + case when exists (select 1 from {schema}.edge e where e.awaited = n.seq offset 0) then 8 else 0 end
               + case when limit_keys[n.nth] <> '' then 16 else 0 end + case when n.nth is null then 0 else 64 end
        from lined n
    )
    insert into {schema}.counter (queue, ready, held, parked)
    select h.queue, count(*) filter (where not h.held),
           count(*) filter (where h.held and not (h.follows and h.status = 2)),
           count(*) filter (where h.held and h.follows and h.status = 2)
    from (
        select n.queue, n.follows, n.status,
               n.follows or exists (select 1 from {schema}.edge e where e.waiting = n.seq offset 0) as held
        from lined n
    ) h
    group by h.queue;
    if cardinality(after_places) > 0 then
        update {schema}.terms t set after = a.ids
        from (
            select numbers[o.place] as seq, array_agg(o.id order by o.nth) as ids
            from unnest(after_places, after_ids) with ordinality as o (place, id, nth) group by o.place
        ) a
        where t.seq = any (array[a.seq]);
    end if;
    -- Of those that were not added after all, nothing is left.
    delete from {schema}.line l
    using (
        select distinct queues[o.place] as queue, o.key from unnest(bound_places, order_keys) as o (place, key)
        where o.key <> ''
    ) o
    where l.queue = any (array[o.queue]) and l.key = o.key and l.head is null and l.gap = '';
end
$function$;

-- :name call
select place, note, other, fill, capacity from {schema}.put(
    %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, true
);

-- :name rewrite_payload
-- Of reencrypt: what a body says stays the same. One that is not what was read is left.
update {schema}.item i set body = o.new, crc = o.crc, packing = o.packing
from unnest(%b::text[], %b::integer[], %b::bytea[], %b::bigint[], %b::smallint[], %b::bytea[])
     as o (id, number, old, crc, packing, new)
where i.id = o.id and i.body = o.old
returning i.id;

-- :name rewrite_result
update {schema}.result r set body = o.new, packing = o.packing
from unnest(%b::text[], %b::integer[], %b::bytea[], %b::bigint[], %b::smallint[], %b::bytea[])
     as o (id, number, old, crc, packing, new)
join {schema}.item i on i.id = o.id
where r.seq = i.seq and r.body = o.old
returning i.id;

-- :name rewrite_revision
update {schema}.revision r set body = o.new, crc = o.crc, packing = o.packing
from unnest(%b::text[], %b::integer[], %b::bytea[], %b::bigint[], %b::smallint[], %b::bytea[])
     as o (id, number, old, crc, packing, new)
join {schema}.item i on i.id = o.id
where r.seq = i.seq and r.number = o.number and r.body = o.old
returning i.id;
