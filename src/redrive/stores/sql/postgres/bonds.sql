-- bonds: what items that are bound to others do to each other; called by put, settle and amend.
-- Inputs: numbers of items, and how each ended: 0 done, 1 ready again, 2 dead, 4 cancelled.
-- Outputs: queues in which something became ready.
-- Atomicity: within the statement or transaction of the verb. Locks come in this order: lines, courses of what the verb
--   moves, courses of those that wait, slots, dedupe keys. What a lock protects is always read by a later statement: it
--   sees what whoever held it before has committed, or the end of one and the coming of another would miss each other.

-- :name take_keys
-- Dedupe keys for these items, in their order. Gives those that another holds, with the holder's id.
create or replace function {schema}.take_keys(
    now_at bigint, seqs bigint[], of_ids text[], scopes text[], keys text[], untils bigint[]
) returns table (seq bigint, holder text)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    without bigint[];
    refused bigint[];
begin
    loop
        with took as (
            insert into {schema}.dedupe (scope, key, seq, id, until)
            select o.scope, o.key, o.seq, o.id, o.until
            from unnest(seqs, of_ids, scopes, keys, untils) with ordinality as o (seq, id, scope, key, until, nth)
            where without is null or o.seq = any (without) order by o.scope, o.key, o.nth
            on conflict (scope, key) do nothing
            returning seq
        )
        select array(select unnest(coalesce(without, seqs)) except select seq from took) into without;
        exit when cardinality(without) = 0;
        perform 1 from unnest(seqs, scopes, keys) as o (seq, scope, key)
        join {schema}.dedupe d on d.scope = o.scope and d.key = o.key
        where o.seq = any (without) order by d.scope, d.key for no key update of d;
        delete from {schema}.dedupe d using unnest(seqs, scopes, keys) as o (seq, scope, key)
        where o.seq = any (without) and d.scope = o.scope and d.key = o.key and coalesce(d.until, 0) <= now_at
          and d.seq <> all (seqs)
          and not exists (select 1 from {schema}.course c where c.seq = d.seq and c.state in ('ready', 'leased'));
        refused := array(
            select o.seq from unnest(seqs, scopes, keys) as o (seq, scope, key)
            join {schema}.dedupe d on d.scope = o.scope and d.key = o.key
            where o.seq = any (without)
        );
        return query
        select o.seq, d.id from unnest(seqs, scopes, keys) as o (seq, scope, key)
        join {schema}.dedupe d on d.scope = o.scope and d.key = o.key
        where o.seq = any (refused);
        without := array(select unnest(without) except select unnest(refused));
        exit when cardinality(without) = 0;
    end loop;
end
$function$;

-- :name free_keys
-- Those of the dead and the cancelled at once; those of the done when their window is over.
create or replace function {schema}.free_keys(now_at bigint, seqs bigint[], ends smallint[]) returns void
language sql volatile parallel unsafe
as $function$
    delete from {schema}.dedupe d using unnest(seqs, ends) as o (seq, ending), {schema}.terms t
    where t.seq = o.seq and d.scope = t.scope and d.key = t.dedupe_key and d.seq = o.seq
      and (o.ending > 1 or (o.ending = 0 and coalesce(d.until, 0) <= now_at))
$function$;

-- :name bucket
-- The counter of a ready item. One of a parked line follows its dead head.
create or replace function {schema}.bucket(of_seq bigint, of_queue text, hold smallint, ties smallint) returns text
language sql stable parallel safe
as $function$
    select case when hold = 0 then 'ready' when ties & 1 <> 0 and exists (
        select 1 from {schema}.line l
        where l.queue = of_queue and l.key = (select t.order_key from {schema}.terms t where t.seq = of_seq)
          and l.status = 2
    ) then 'parked' else 'held' end
$function$;

-- :name lock_lines
-- The lines of these items, always in the same order.
create or replace function {schema}.lock_lines(seqs bigint[]) returns void
language plpgsql volatile parallel unsafe
as $function$
begin
    perform 1
    from (
        select distinct i.queue, t.order_key as key
        from unnest(seqs) as o (seq)
        join {schema}.terms t on t.seq = o.seq and t.order_key <> ''
        join {schema}.item i on i.seq = o.seq
        order by 1, 2
    ) o
    cross join lateral (
        select 1 from {schema}.line l where l.queue = o.queue and l.key = o.key for no key update
    ) l;
end
$function$;

-- :name die
-- Ready items become letters because one that they wait for is dead or was cancelled. The caller has locked them.
create or replace function {schema}.die(now_at bigint, seqs bigint[]) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    insert into {schema}.counter (queue, ready, held, parked, open)
    select b.queue, -count(*) filter (where b.kind = 'ready'), -count(*) filter (where b.kind = 'held'),
           -count(*) filter (where b.kind = 'parked'), count(*)
    from (
        select c.queue, {schema}.bucket(c.seq, c.queue, c.hold, c.ties) as kind
        from {schema}.course c where c.seq = any (seqs)
    ) b
    group by b.queue;
    with fallen as (
        update {schema}.course c set state = 'dead', ended_at = now_at, hold = 0
        where c.seq = any (seqs)
        returning c.seq, c.queue
    ), died as (
        insert into {schema}.letter (
            seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure
        )
        select f.seq, f.queue, 'dependency', now_at, 'open', 'dependency', 'redrive.DependencyFailed',
               'DependencyFailed', 'dependency', 'after',
               '{"type":"redrive.DependencyFailed","text":"an item that it waits for is dead or was cancelled"'
               ',"category":"dependency","rule":"after","cause":"dependency","action":"dead","code":null,"frames":[]}'
        from fallen f
        returning queue
    )
    insert into {schema}.cause (cause, queue, n)
    select 'dependency', d.queue, count(*) from died d group by d.queue;
end
$function$;

-- :name untie
-- What the end of these items, which are marked as ended, does to others. First all who die of it; then followers
-- leave their lines, and lines move on; then those who are free become ready. were_free: those that were ready and
-- could have run. leased: the others were leased, and so heads of their lines.
create or replace function {schema}.untie(
    now_at bigint, seqs bigint[], ends smallint[], were_free bigint[], leased boolean
) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    gone bigint[] := array(select o.seq from unnest(seqs, ends) as o (seq, ending) where o.ending > 1);
    done bigint[] := array(select o.seq from unnest(seqs, ends) as o (seq, ending) where o.ending = 0);
    ended_leases integer := case when leased then cardinality(seqs) else 0 end;
    bits integer;
    freed bigint[] := '{}';
    woken text[] := '{}';
begin
    select bit_or(c.ties) into bits from {schema}.course c where c.seq = any (seqs);
    if bits & 8 <> 0 then
        loop
            gone := array(
                select distinct e.waiting from unnest(gone) as o (seq)
                join {schema}.edge e on e.awaited = o.seq
                join {schema}.terms t on t.seq = e.waiting and t.dies
            );
            exit when cardinality(gone) = 0;
            perform {schema}.lock_lines(gone);
            perform 1 from {schema}.course c where c.seq = any (gone) order by c.seq for no key update;
            gone := array(select c.seq from {schema}.course c where c.seq = any (gone) and c.state = 'ready');
            exit when cardinality(gone) = 0;
            perform {schema}.die(now_at, gone);
            seqs := seqs || gone;
            ends := ends || array_fill(2::smallint, array[cardinality(gone)]);
            select bits | bit_or(c.ties) into bits from {schema}.course c where c.seq = any (gone);
        end loop;
        with cut as (
            delete from {schema}.edge e using unnest(done) as o (seq) where e.awaited = o.seq returning e.waiting
        )
        select coalesce(array_agg(distinct c.waiting), '{}') into freed from cut c;
    end if;
    if bits & 4 <> 0 then
        delete from {schema}.edge e using unnest(seqs, ends) as o (seq, ending)
        where e.waiting = o.seq and o.ending <> 1;
    end if;
    if bits & 32 <> 0 then
        with cleared as (
            update {schema}.terms t set cancel = '' from unnest(seqs, ends) as o (seq, ending)
            where t.seq = o.seq and o.ending <> 4 and t.cancel <> ''
            returning t.seq
        )
        update {schema}.course c set ties = c.ties & ~32 from cleared o where c.seq = o.seq;
    end if;
    if bits & 1 <> 0 then
        perform {schema}.lock_lines(seqs);
        if cardinality(seqs) > ended_leases then
            perform {schema}.leave_lines(seqs, ends);
        end if;
        select freed || m.heads, m.woken into freed, woken from {schema}.move_lines(seqs, ends) as m;
    end if;
    if cardinality(freed) > 0 then
        woken := woken || {schema}.rehold(freed);
    end if;
    if bits & 16 <> 0 then
        woken := woken || {schema}.give_back(seqs, ends, seqs[1:ended_leases], were_free);
    end if;
    if bits & 2 <> 0 then
        perform {schema}.free_keys(now_at, seqs, ends);
    end if;
    return woken;
end
$function$;

-- :name leave_lines
-- Ended followers. Their lines are locked.
create or replace function {schema}.leave_lines(seqs bigint[], ends smallint[]) returns void
language sql volatile parallel unsafe
as $function$
    with gone as (
        delete from {schema}.follower f
        using unnest(seqs, ends) as o (seq, ending), {schema}.terms t, {schema}.item i
        where o.ending <> 1 and t.seq = o.seq and i.seq = o.seq
          and f.queue = i.queue and f.key = t.order_key and f.place = t.place and f.seq = o.seq
        returning f.queue, f.key
    )
    update {schema}.line l set waiting = l.waiting - g.n
    from (select queue, key, count(*) as n from gone group by queue, key) g
    where l.queue = g.queue and l.key = g.key
$function$;

-- :name move_lines
-- Lines whose head has ended: on to the next, or by the queue's order to a stop. Gives the queues in which a new head is
-- free, and the new heads that may wait for something else, as rehold has to say. Their lines are locked.
create or replace function {schema}.move_lines(seqs bigint[], ends smallint[], out heads bigint[], out woken text[])
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    with stepped as materialized (
        select l.queue, l.key, l.waiting, n.place as next_place, n.seq as next_seq,
               case when o.ending <> 2 then 'go' else coalesce(q.order_mode, 'block') end as how,
               case when o.ending = 2 then i.id when l.gap = i.id then '' else l.gap end as gap
        from unnest(seqs, ends) as o (seq, ending)
        join {schema}.terms t on t.seq = o.seq and t.order_key <> ''
        join {schema}.item i on i.seq = o.seq
        -- By its key, whatever the planner thinks of a table that it does not know yet.
        join lateral (
            select n.* from {schema}.line n where n.queue = i.queue and n.key = t.order_key offset 0
        ) l on l.head = o.seq
        left join {schema}.queue q on q.name = l.queue
        left join lateral (
            select f.place, f.seq from {schema}.follower f
            where f.queue = l.queue and f.key = l.key order by f.place limit 1
        ) n on true
        where o.ending <> 1
    ), stopped as (
        update {schema}.line l set status = case s.how when 'park' then 2 else 1 end
        from stepped s where s.how in ('block', 'park') and l.queue = s.queue and l.key = s.key
    ), parked as (
        insert into {schema}.counter (queue, held, parked)
        select s.queue, -sum(s.waiting), sum(s.waiting) from stepped s
        where s.how = 'park' and s.waiting > 0 group by s.queue
    ), left_line as (
        delete from {schema}.follower f using stepped s
        where s.how in ('go', 'skip') and f.queue = s.queue and f.key = s.key and f.place = s.next_place
    ), moved as (
        update {schema}.line l
        set head = s.next_seq, gap = s.gap, status = 0,
            waiting = l.waiting - case when s.next_seq is null then 0 else 1 end
        from stepped s
        where s.how in ('go', 'skip') and l.queue = s.queue and l.key = s.key
          and (s.next_seq is not null or s.gap <> '')
    ), emptied as (
        delete from {schema}.line l using stepped s
        where s.how in ('go', 'skip') and l.queue = s.queue and l.key = s.key and s.next_seq is null and s.gap = ''
    ), marked as (
        update {schema}.terms t set gap = s.gap from stepped s
        where s.how in ('go', 'skip') and t.seq = s.next_seq and s.gap <> ''
    ), freed as (
        update {schema}.course c set hold = 0 from stepped s
        where s.how in ('go', 'skip') and c.seq = s.next_seq and c.ties & 4 = 0
        returning c.seq, c.queue
    ), counted as (
        insert into {schema}.counter (queue, held, ready)
        select f.queue, -count(*), count(*) from freed f group by f.queue
    )
    select array(
               select s.next_seq from stepped s where s.how in ('go', 'skip') and s.next_seq is not null
               except select f.seq from freed f
           ), array(select distinct f.queue from freed f)
    into heads, woken;
end
$function$;

-- :name rehold
-- What these ready items still wait for, now that they wait for less. Gives the queues in which one became free.
create or replace function {schema}.rehold(seqs bigint[]) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    woken text[];
begin
    perform 1 from {schema}.course c where c.seq = any (seqs) order by c.seq for no key update;
    with found as materialized (
        select c.seq, c.hold,
               case when c.ties & 4 <> 0 and exists (select 1 from {schema}.edge e where e.waiting = c.seq) then 1
                    when c.ties & 1 <> 0 and exists (
                        select 1 from {schema}.line l
                        where l.queue = c.queue and l.key = (select t.order_key from {schema}.terms t where t.seq = c.seq)
                          and l.head is distinct from c.seq
                    ) then 2
                    when c.hold = 3 then 3 else 0 end as new_hold
        from {schema}.course c where c.seq = any (seqs) and c.state = 'ready'
    ), changed as (
        update {schema}.course c set hold = f.new_hold from found f
        where c.seq = f.seq and f.hold <> f.new_hold
        returning c.queue, f.new_hold
    ), counted as (
        insert into {schema}.counter (queue, held, ready)
        select c.queue, -count(*), count(*) from changed c where c.new_hold = 0 group by c.queue
    )
    select coalesce(array_agg(distinct c.queue), '{}') into woken from changed c where c.new_hold = 0;
    return woken;
end
$function$;

-- :name give_back
-- Places under limit keys: of each lease that ended one, and the first that was set aside for it is free. So it is for
-- one that could have run and did not: it may have been the one for which the last place was given back.
create or replace function {schema}.give_back(
    seqs bigint[], ends smallint[], leases bigint[], were_free bigint[]
) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    woken text[];
begin
    delete from {schema}.aside a using unnest(seqs, ends) as o (seq, ending), {schema}.terms t, {schema}.item i
    where o.ending > 1 and t.seq = o.seq and i.seq = o.seq
      and a.queue = i.queue and a.key = t.limit_key and a.seq = o.seq;
    insert into {schema}.slot as s (queue, key, running)
    select i.queue, t.limit_key, -count(*) filter (where o.leased)
    from (
        select seq, true as leased from unnest(leases) as l (seq)
        union all select seq, false from unnest(were_free) as w (seq)
    ) o
    join {schema}.terms t on t.seq = o.seq and t.limit_key <> ''
    join {schema}.item i on i.seq = o.seq
    group by i.queue, t.limit_key order by i.queue, t.limit_key
    on conflict (queue, key) do update set running = s.running + excluded.running;
    with ended as materialized (
        select i.queue, t.limit_key as key, count(*) as n
        from unnest(leases || were_free) as o (seq)
        join {schema}.terms t on t.seq = o.seq and t.limit_key <> ''
        join {schema}.item i on i.seq = o.seq
        group by i.queue, t.limit_key
    ), next as materialized (
        select a.queue, a.key, a.seq
        from ended e
        cross join lateral (
            select n.queue, n.key, n.seq from {schema}.aside n
            where n.queue = e.queue and n.key = e.key order by n.seq limit e.n
        ) a
    ), taken as (
        delete from {schema}.aside a using next n where a.queue = n.queue and a.key = n.key and a.seq = n.seq
    ), freed as (
        update {schema}.course c set hold = 0 from next n where c.seq = n.seq and c.hold = 3
        returning c.queue
    ), counted as (
        insert into {schema}.counter (queue, held, ready)
        select f.queue, -count(*), count(*) from freed f group by f.queue
    )
    select coalesce(array_agg(distinct f.queue), '{}') into woken from freed f;
    return woken;
end
$function$;
