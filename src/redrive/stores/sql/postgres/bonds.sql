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
        join {schema}.dedupe d on d.scope = any (array[o.scope]) and d.key = o.key
        where o.seq = any (without) order by o.scope, o.key for no key update of d;
        delete from {schema}.dedupe d using unnest(seqs, scopes, keys) as o (seq, scope, key)
        where o.seq = any (without) and d.scope = any (array[o.scope]) and d.key = o.key
          and coalesce(d.until, 0) <= now_at and d.seq <> all (seqs)
          and not exists (
              select 1 from {schema}.course c where c.seq = d.seq and c.state in ('ready', 'leased') offset 0
          );
        refused := array(
            select o.seq from unnest(seqs, scopes, keys) as o (seq, scope, key)
            where o.seq = any (without)
              and exists (select 1 from {schema}.dedupe d where d.scope = o.scope and d.key = o.key offset 0)
        );
        return query
        select o.seq, d.id from unnest(seqs, scopes, keys) as o (seq, scope, key)
        join {schema}.dedupe d on d.scope = any (array[o.scope]) and d.key = o.key
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
    where t.seq = any (array[o.seq]) and d.scope = any (array[t.scope]) and d.key = t.dedupe_key and d.seq = o.seq
      and (o.ending > 1 or (o.ending = 0 and coalesce(d.until, 0) <= now_at))
$function$;

-- :name bucket
-- The counter of a ready item. One of a parked line follows its dead head.
create or replace function {schema}.bucket(of_seq bigint, of_queue text, hold smallint, ties smallint) returns text
language sql stable parallel safe
as $function$
    select case when hold = 0 then 'ready' when hold = 4 then 'parked' when ties & 1 <> 0 and exists (
        select 1 from {schema}.line l
        where l.queue = of_queue and l.key = (select t.order_key from {schema}.terms t where t.seq = of_seq)
          and l.status = 2
    ) then 'parked' else 'held' end
$function$;

-- :name parked_behind
-- How many items behind the head of a line an operator parked: they count as parked whatever becomes of the head.
create or replace function {schema}.parked_behind(of_queue text, of_key text) returns bigint
language sql stable parallel safe
as $function$
    select count(*)
    from (select c.seq from {schema}.course c where c.state = 'ready' and c.hold = 4 and c.queue = of_queue offset 0) c
    join {schema}.terms t on t.seq = any (array[c.seq]) and t.order_key = of_key
    join {schema}.follower f on f.queue = of_queue and f.key = of_key and f.place = t.place and f.seq = c.seq
$function$;

-- :name lock_lines
-- The lines of these items, always in the same order. Gives where they lie.
create or replace function {schema}.lock_lines(seqs bigint[]) returns tid[]
language plpgsql volatile parallel unsafe
as $function$
declare
    locked tid[];
begin
    select array_agg(l.tid) into locked
    from (
        select distinct t.queue, t.order_key as key
        from unnest(seqs) as o (seq)
        cross join lateral (
            select n.queue, n.order_key from {schema}.terms n where n.seq = o.seq and n.order_key <> '' offset 0
        ) t
        order by 1, 2
    ) o
    cross join lateral (
        select l.ctid as tid from {schema}.line l where l.queue = o.queue and l.key = o.key for no key update
    ) l;
    return locked;
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
        update {schema}.course c set state = 'dead', ended_at = now_at, hold = 0, ties = c.ties & ~256
        where c.seq = any (seqs)
        returning c.seq, c.queue
    ), died as (
        insert into {schema}.letter (
            seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure
        )
        select f.seq, f.queue, 'dependency', now_at, 'open', 'dependency', 'redrive.DependencyFailed',
               'DependencyFailed', 'dependency', 'after',
               '{"type":"redrive.DependencyFailed","text":"an item that it waits for is dead or was cancelled"'
               ',"category":"dependency","rule":"after","cause":"dependency","action":"dead","code":'
               'null,"frames":[]}'
        from fallen f
        returning seq, queue
    ), noted as (
        insert into {schema}.unnumbered (seq) select d.seq from died d
    )
    insert into {schema}.cause (cause, queue, n)
    select 'dependency', d.queue, count(*) from died d group by d.queue;
end
$function$;

-- :name untie
-- What the end of these items, which are marked as ended, does to others. First all who die of it; then followers
-- leave their lines, and lines move on; then those who are free become ready. were_free: those that were ready and
-- could have run. leased: the others were leased, and so heads of their lines. bits: all ties that they have. locked:
-- their lines are locked already.
create or replace function {schema}.untie(
    now_at bigint, seqs bigint[], ends smallint[], were_free bigint[], leased boolean, bits integer, locked boolean
) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    gone bigint[];
    ours bigint[] := '{}';
    done bigint[];
    ended_leases integer := case when leased then cardinality(seqs) else 0 end;
    freed bigint[] := '{}';
    woken text[] := '{}';
begin
    if bits & 8 <> 0 then
        done := array(select o.seq from unnest(seqs, ends) as o (seq, ending) where o.ending = 0);
        -- Whoever was put to wait for one of them before it was locked is found with the next look.
        loop
            gone := array(
                with recursive falls (seq) as (
                    select o.seq from unnest(seqs, ends) as o (seq, ending) where o.ending > 1
                    union
                    select n.waiting
                    from falls f
                    cross join lateral (
                        select e.waiting from {schema}.edge e
                        where e.awaited = f.seq
                          and exists (select 1 from {schema}.terms t where t.seq = e.waiting and t.dies offset 0)
                          and (select c.state from {schema}.course c where c.seq = e.waiting) = 'ready'
                        offset 0
                    ) n
                )
                select f.seq from falls f except select unnest(seqs)
            );
            exit when not exists (select unnest(gone) except select unnest(ours));
            perform {schema}.lock_lines(gone);
            perform 1 from {schema}.course c where c.seq = any (gone) order by c.seq for no key update;
            ours := gone;
        end loop;
        if cardinality(gone) > 0 then
            perform {schema}.die(now_at, gone);
            seqs := seqs || gone;
            ends := ends || array_fill(2::smallint, array[cardinality(gone)]);
            select bits | bit_or(c.ties) into bits from {schema}.course c where c.seq = any (gone);
        end if;
        with cut as (
            delete from {schema}.edge e where e.awaited = any (done) returning e.waiting
        )
        select coalesce(array_agg(distinct c.waiting), '{}') into freed from cut c;
    end if;
    if bits & 4 <> 0 then
        delete from {schema}.edge e using unnest(seqs, ends) as o (seq, ending)
        where e.waiting = any (array[o.seq]) and o.ending <> 1;
    end if;
    if bits & 32 <> 0 then
        with cleared as (
            update {schema}.terms t set cancel = '' from unnest(seqs, ends) as o (seq, ending)
            where t.seq = any (array[o.seq]) and o.ending <> 4 and t.cancel <> ''
            returning t.seq
        )
        update {schema}.course c set ties = c.ties & ~32 from cleared o where c.seq = any (array[o.seq]);
    end if;
    if bits & 1 <> 0 then
        if not locked then
            perform {schema}.lock_lines(seqs);
        end if;
        if cardinality(seqs) > ended_leases then
            perform {schema}.leave_lines(seqs, ends);
        end if;
        select freed || m.heads, m.woken into freed, woken from {schema}.move_lines(seqs, ends) as m;
    end if;
    if cardinality(freed) > 0 then
        woken := woken || {schema}.rehold(freed);
    end if;
    if bits & 16 <> 0 then
        woken := woken || {schema}.give_back(seqs, ends, seqs[1 : ended_leases], were_free);
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
        using unnest(seqs, ends) as o (seq, ending), {schema}.terms t
        where o.ending <> 1 and t.seq = any (array[o.seq])
          and f.queue = any (array[t.queue]) and f.key = t.order_key and f.place = t.place and f.seq = o.seq
        returning f.queue, f.key
    )
    update {schema}.line l set waiting = l.waiting - g.n
    from (select queue, key, count(*) as n from gone group by queue, key) g
    where l.queue = any (array[g.queue]) and l.key = g.key
$function$;

-- :name move_lines
-- Lines whose head has ended: on to the next, or by the queue's order to a stop. Gives the queues in which a new head is
-- free, and the new heads that may wait for something else, as rehold has to say. Their lines are locked, so that they
-- and their first followers stay where they lie.
create or replace function {schema}.move_lines(seqs bigint[], ends smallint[], out heads bigint[], out woken text[])
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    tids tid[];
    gaps text[];
    next_tids tid[];
    next_seqs bigint[];
    last_tids tid[];
    last_gaps text[];
    stopped tid[];
begin
    heads := '{}';
    woken := '{}';
    with stepped as (
        -- Each by its key, whatever the planner thinks of tables that it does not know yet.
        select l.ctid as line_tid, n.ctid as next_tid, n.seq as next_seq,
               o.ending = 2 and coalesce(
                   (select q.order_mode from {schema}.settings_for(l.queue, false) q), 'block'
               ) <> 'skip' as stops,
               case when o.ending = 2 then (select i.id from {schema}.item i where i.seq = o.seq)
                    when l.gap = '' then ''
                    when l.gap = (select i.id from {schema}.item i where i.seq = o.seq) then '' else l.gap end as gap
        from unnest(seqs, ends) as o (seq, ending)
        cross join lateral (
            select n.queue, n.order_key from {schema}.terms n where n.seq = o.seq and n.order_key <> '' offset 0
        ) t
        cross join lateral (
            select n.ctid, n.queue, n.key, n.head, n.gap, n.waiting from {schema}.line n
            where n.queue = t.queue and n.key = t.order_key offset 0
        ) l
        left join lateral (
            select f.ctid, f.seq from {schema}.follower f
            where l.waiting > 0 and f.queue = l.queue and f.key = l.key order by f.place limit 1
        ) n on true
        where o.ending <> 1 and l.head = o.seq
        offset 0
    )
    select array_agg(s.line_tid) filter (where not s.stops and s.next_seq is not null),
           array_agg(s.gap) filter (where not s.stops and s.next_seq is not null),
           array_agg(s.next_tid) filter (where not s.stops and s.next_seq is not null),
           array_agg(s.next_seq) filter (where not s.stops and s.next_seq is not null),
           array_agg(s.line_tid) filter (where not s.stops and s.next_seq is null),
           array_agg(s.gap) filter (where not s.stops and s.next_seq is null),
           array_agg(s.line_tid) filter (where s.stops)
    into tids, gaps, next_tids, next_seqs, last_tids, last_gaps, stopped from stepped s;
    if next_seqs is not null then
        with stepped as materialized (
            select * from unnest(tids, gaps, next_tids, next_seqs) as s (line_tid, gap, next_tid, next_seq)
        ), left_line as (
            delete from {schema}.follower f using stepped s where f.ctid = s.next_tid
        ), moved as (
            update {schema}.line l set head = s.next_seq, gap = s.gap, status = 0, waiting = l.waiting - 1
            from stepped s where l.ctid = s.line_tid
        ), freed as (
            update {schema}.course c set hold = 0 from stepped s
            where c.seq = any (array[s.next_seq]) and c.ties & 260 = 0
            returning c.seq, c.queue
        ), counted as (
            insert into {schema}.counter (queue, held, ready)
            select f.queue, -count(*), count(*) from freed f group by f.queue
        )
        select array(select s.next_seq from stepped s except select f.seq from freed f),
               array(select distinct f.queue from freed f)
        into heads, woken;
        if exists (select 1 from unnest(gaps) as s (gap) where s.gap <> '') then
            update {schema}.terms t set gap = s.gap from unnest(next_seqs, gaps) as s (seq, gap)
            where t.seq = any (array[s.seq]) and s.gap <> '';
        end if;
    end if;
    if last_tids is not null then
        delete from {schema}.line l using unnest(last_tids, last_gaps) as s (line_tid, gap)
        where s.gap = '' and l.ctid = s.line_tid;
        if exists (select 1 from unnest(last_gaps) as s (gap) where s.gap <> '') then
            update {schema}.line l set head = null, gap = s.gap, status = 0
            from unnest(last_tids, last_gaps) as s (line_tid, gap) where s.gap <> '' and l.ctid = s.line_tid;
        end if;
    end if;
    if stopped is not null then
        with halted as (
            update {schema}.line l
            set status = case when exists (
                select 1 from {schema}.settings_for(l.queue, false) q where q.order_mode = 'park'
            ) then 2 else 1 end
            from unnest(stopped) as s (line_tid) where l.ctid = s.line_tid
            returning l.queue, l.key, l.waiting, l.status
        ), behind as (
            select h.queue, h.waiting - {schema}.parked_behind(h.queue, h.key) as n
            from halted h where h.status = 2 and h.waiting > 0
        )
        insert into {schema}.counter (queue, held, parked)
        select b.queue, -sum(b.n), sum(b.n) from behind b group by b.queue having sum(b.n) > 0;
    end if;
end
$function$;

-- :name end_heads
-- Heads that are done and have no other tie: nearly all that have an order key end so, and then their lines end too, or go
-- one step. Where these lines lie is known, and they are locked; what is not so plain is left to untie, which passes over
-- what is done here. Gives the queues in which a new head is free.
create or replace function {schema}.end_heads(now_at bigint, seqs bigint[], tids tid[]) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    gone bigint;
    stepped bigint := 0;
    heads bigint[];
    woken text[] := '{}';
begin
    delete from {schema}.line l where l.ctid = any (tids) and l.waiting = 0 and l.gap = '';
    get diagnostics gone = row_count;
    if gone < cardinality(tids) then
        with step as materialized (
            select l.ctid as line_tid, n.ctid as next_tid, n.seq as next_seq
            from {schema}.line l
            cross join lateral (
                select f.ctid, f.seq from {schema}.follower f
                where f.queue = l.queue and f.key = l.key order by f.place limit 1
            ) n
            where l.ctid = any (tids) and l.waiting > 0 and l.gap = '' and l.status = 0
        ), left_line as (
            delete from {schema}.follower f using step s where f.ctid = s.next_tid
        ), moved as (
            update {schema}.line l set head = s.next_seq, waiting = l.waiting - 1
            from step s where l.ctid = s.line_tid
        ), freed as (
            update {schema}.course c set hold = 0 from step s
            where c.seq = any (array[s.next_seq]) and c.ties & 260 = 0
            returning c.seq, c.queue
        ), counted as (
            insert into {schema}.counter (queue, held, ready)
            select f.queue, -count(*), count(*) from freed f group by f.queue
        )
        select (select count(*) from step), array(select s.next_seq from step s except select f.seq from freed f),
               array(select distinct f.queue from freed f)
        into stepped, heads, woken;
        if cardinality(heads) > 0 then
            woken := woken || {schema}.rehold(heads);
        end if;
    end if;
    if gone + stepped < cardinality(tids) then
        woken := woken || {schema}.untie(
            now_at, seqs, array_fill(0::smallint, array[cardinality(seqs)]), '{}', true, 1, true
        );
    end if;
    return woken;
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
    -- Not by the state, which would let an index of all that is ready lead to them.
    with known as materialized (
        select c.seq, c.queue, c.state, c.hold, c.ties
        from unnest(seqs) as o (seq)
        cross join lateral (select n.* from {schema}.course n where n.seq = o.seq offset 0) c
    ), found as materialized (
        select c.seq, c.hold,
               case when c.ties & 4 <> 0
                         and exists (select 1 from {schema}.edge e where e.waiting = c.seq offset 0) then 1
                    when c.ties & 1 <> 0 and exists (
                        select 1 from {schema}.line l
                        where l.queue = c.queue and l.key = (select t.order_key from {schema}.terms t where t.seq = c.seq)
                          and l.head is distinct from c.seq
                        offset 0
                    ) then 2
                    when c.hold = 3 then 3 else 0 end as new_hold
        from known c where c.state = 'ready' and c.hold <> 4
    ), changed as (
        update {schema}.course c set hold = f.new_hold from found f
        where c.seq = any (array[f.seq]) and f.hold <> f.new_hold
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
    of_queues text[];
    of_keys text[];
    ended bigint[];
    woken text[];
begin
    if exists (select 1 from unnest(ends) as o (ending) where o.ending > 1) then
        delete from {schema}.aside a using unnest(seqs, ends) as o (seq, ending), {schema}.terms t
        where o.ending > 1 and t.seq = any (array[o.seq])
          and a.queue = any (array[t.queue]) and a.key = t.limit_key and a.seq = o.seq;
    end if;
    with ended as materialized (
        select t.queue, t.limit_key as key, count(*) as n, count(*) filter (where o.leased) as leases
        from (
            select seq, true as leased from unnest(leases) as l (seq)
            union all select seq, false from unnest(were_free) as w (seq)
        ) o
        cross join lateral (
            select n.queue, n.limit_key from {schema}.terms n where n.seq = o.seq and n.limit_key <> '' offset 0
        ) t
        group by t.queue, t.limit_key
    ), counted as (
        insert into {schema}.slot as s (queue, key, running)
        select e.queue, e.key, -e.leases from ended e order by e.queue, e.key
        on conflict (queue, key) do update set running = s.running + excluded.running
    )
    select array_agg(e.queue), array_agg(e.key), array_agg(e.n) into of_queues, of_keys, ended from ended e;
    -- Whoever sets aside holds the slot, and so do we now: what is not there will not come.
    if not exists (select 1 from {schema}.aside) then
        return '{}';
    end if;
    with next as materialized (
        select a.queue, a.key, a.seq
        from unnest(of_queues, of_keys, ended) as e (queue, key, n)
        cross join lateral (
            select n.queue, n.key, n.seq from {schema}.aside n
            where n.queue = e.queue and n.key = e.key order by n.seq limit e.n
        ) a
    ), taken as (
        delete from {schema}.aside a using next n
        where a.queue = any (array[n.queue]) and a.key = n.key and a.seq = n.seq
    ), freed as (
        update {schema}.course c set hold = 0 from next n where c.seq = any (array[n.seq]) and c.hold = 3
        returning c.queue
    ), counted as (
        insert into {schema}.counter (queue, held, ready)
        select f.queue, -count(*), count(*) from freed f group by f.queue
    )
    select coalesce(array_agg(distinct f.queue), '{}') into woken from freed f;
    return woken;
end
$function$;
