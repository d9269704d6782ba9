-- settle: ends leases, each only if its delivery is the current one of a leased item; then leases anew.
-- Inputs: the settlements as arrays: number (0: look it up by id), delivery, kind (0 done, 1 ready, 2 dead, 4 cancelled,
--   9 only to be judged), delay (of the dead: for how long it stays if its route is full), charge (1 error, 2 crash, 3
--   the attempt is given back); kinds null: all are done and nothing else. ordered: whether one may have an order key.
--   Results, attempts, letters and follow-ups name the place (from 1) of their settlement. Then a lease request.
-- Outputs: rows with note 2 are settlements that were not applied: their place in seq, and in deliveries the current
--   delivery (null: no such item). Note 3: something became ready in that queue, or there is room in it, and something
--   is left to be leased. Note 4: the place of one that was cancelled instead, note 5: of one that was kept. The others
--   are those of lease. Raises RD002 with the name of a queue that is encrypted, and gets a body which is not.
-- Atomicity: one statement with attempts, letters, counters, follow-ups, all that waited, and the next lease. One refusal
--   fails nothing. Locks come in this order: limits and gates of the next lease, lines, routes with a capacity, courses
--   by number, and then as in bonds.sql. The end of an item waits for somebody's open transaction that puts to its line
--   or waits for it.
-- That an item is leased is told by lease_until, which no index knows: so only its number can lead to it. A letter has
-- one, too, while somebody works on it where it lies; that is for settle_letters to end.

-- :name function
create or replace function {schema}.settle(
    pinned bigint, seqs bigint[], ids text[], ended integer[], ordered boolean,
    kinds smallint[], delays bigint[], charges smallint[],
    result_places integer[], result_packings smallint[], result_bodies bytea[],
    attempt_places integer[], attempt_bodies bytea[],
    letter_places integer[], letter_reasons text[], letter_causes text[], letter_errors text[],
    letter_shorts text[], letter_categories text[], letter_rules text[], letter_routes text[], letter_failures bytea[],
    new_places integer[], new_ids text[], new_queues text[], new_delays bigint[], new_crcs bigint[],
    new_packings smallint[], new_bodies bytea[], new_ats bigint[], new_priorities smallint[],
    new_bound_places integer[], new_order_keys text[], new_limit_keys text[], new_scopes text[],
    new_dedupe_keys text[], new_windows bigint[], new_dies smallint[], new_term_bodies bytea[],
    new_after_places integer[], new_after_ids text[], new_kinds text[], new_releases text[],
    who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
    lines integer[], floor_dues bigint[], floor_seqs bigint[], retries integer[], turns bigint[],
    shares integer[] default null, only_item text default null, kind_lists text[] default null
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
    count_of integer := cardinality(seqs);
    settings {schema}.queue[];
    applied integer[] := '{}';
    tied bigint[];
    tied_ends smallint[];
    bits integer;
    line_tids tid[];
    woken text[];
    freed text[];
    otherwise integer[];
    said {schema}.given;
begin
    if who is not null then
        settings := {schema}.doors(queues);
    end if;
    if ids is not null then
        seqs := array(
            select coalesce(nullif(o.seq, 0), (select i.seq from {schema}.item i where i.id = o.id), 0)
            from unnest(seqs, ids) with ordinality as o (seq, id, place)
            order by o.place
        );
    end if;
    if ordered then
        line_tids := {schema}.lock_lines(seqs);
    end if;
    if count_of > 0 and kinds is null then
        with moved as (
            update {schema}.course c
            set state = 'done', ended_at = now_at, lease_until = null, alone = 0
            from (
                select * from unnest(seqs, ended) with ordinality as n (seq, delivery, place) order by n.seq
            ) o
            where c.seq = any (array[o.seq]) and c.deliveries = o.delivery and c.lease_until is not null
              and c.state <> 'dead'
            returning c.queue, o.place, c.seq, c.ties
        ), counted as (
            insert into {schema}.counter (queue, leased, done)
            select m.queue, -count(*), count(*) from moved m group by m.queue
        )
        select coalesce(array_agg(m.place), '{}'), array_agg(m.seq) filter (where m.ties <> 0), bit_or(m.ties),
               array(select q.name from {schema}.queue q
                     where (q.max_running is not null or q.max_per_key is not null or q.rate_count is not null
                            or q.gate <> '')
                       and q.max_running is not null and q.name in (
                           select n.queue from moved n
                           union all
                           select split_part(n.queue, ':', 1) || ':*' from moved n where strpos(n.queue, ':') > 1
                       ))
        into applied, tied, bits, woken from moved m;
    elsif count_of > 0 then
        if exists (select 1 from unnest(letter_routes) as o (route) where o.route <> '') then
            kinds := {schema}.keep_from_routes(seqs, ended, kinds, letter_places, letter_routes);
        end if;
        with moved as (
            update {schema}.course c
            set state = case when o.kind in (1, 3) and c.ties & 32 = 0 then 'ready'
                             when o.kind = 0 then 'done' when o.kind = 2 then 'dead' else 'cancelled' end,
                due_at = case when o.kind in (1, 3) and c.ties & 32 = 0 then now_at + o.delay else c.due_at end,
                ended_at = case when o.kind in (1, 3) and c.ties & 32 = 0 then c.ended_at else now_at end,
                errors = c.errors + case o.charge when 1 then 1 else 0 end,
                crashes = c.crashes + case o.charge when 2 then 1 else 0 end,
                attempt = c.attempt - case o.charge when 3 then 1 else 0 end,
                level = case o.charge when 1 then c.crashes * 6 + 3 + c.priority
                                      when 2 then c.crashes * 6 + 9 + c.priority else c.level end,
                lease_until = null, alone = 0
            from (
                select * from unnest(seqs, ended, kinds, delays, charges) with ordinality
                     as n (seq, delivery, kind, delay, charge, place)
                order by n.seq
            ) o
            where c.seq = any (array[o.seq]) and c.deliveries = o.delivery and c.lease_until is not null
              and c.state <> 'dead' and o.kind < 9
            returning c.queue, o.kind, o.place, c.seq, c.ties,
                      case when o.kind in (1, 3) and c.ties & 32 <> 0 then 4
                           when o.kind = 3 then 1 else o.kind end as ending
        ), counted as (
            insert into {schema}.counter (queue, leased, done, ready, open, cancelled)
            select m.queue, -count(*), count(*) filter (where m.ending = 0), count(*) filter (where m.ending = 1),
                   count(*) filter (where m.ending = 2), count(*) filter (where m.ending = 4)
            from moved m group by m.queue
        )
        select coalesce(array_agg(m.place), '{}'), array_agg(m.seq) filter (where m.ties <> 0),
               array_agg(m.ending::smallint) filter (where m.ties <> 0), bit_or(m.ties),
               array(select q.name from {schema}.queue q
                     where (q.max_running is not null or q.max_per_key is not null or q.rate_count is not null
                            or q.gate <> '')
                       and q.max_running is not null and q.name in (
                           select n.queue from moved n
                           union all
                           select split_part(n.queue, ':', 1) || ':*' from moved n where strpos(n.queue, ':') > 1
                       )),
               array_agg(case m.ending when 1 then m.place else -m.place end)
                   filter (where m.kind = 3 or m.ending <> m.kind)
        into applied, tied, tied_ends, bits, woken, otherwise from moved m;
        perform {schema}.keep_evidence(
            now_at, seqs, ended, applied, kinds, result_places, result_packings, result_bodies, attempt_places,
            attempt_bodies, letter_places, letter_reasons, letter_causes, letter_errors, letter_shorts,
            letter_categories, letter_rules, letter_routes, letter_failures
        );
        if cardinality(new_places) > 0 then
            perform {schema}.free_keys(now_at, tied, tied_ends);
            perform {schema}.follow_up(
                now_at,
                -- Those that were kept, or cancelled instead, have not ended as they say.
                array(select a.place from unnest(applied) as a (place)
                      where not array[a.place, -a.place] && coalesce(otherwise, '{}')),
                new_places, new_ids, new_queues, new_delays, new_crcs, new_packings, new_bodies,
                new_ats, new_priorities, new_bound_places, new_order_keys, new_limit_keys, new_scopes,
                new_dedupe_keys, new_windows, new_dies, new_term_bodies, new_kinds, new_releases
            );
        end if;
    end if;
    if tied is not null then
        if kinds is null and bits & 63 = 1 and cardinality(line_tids) = count_of and cardinality(tied) = count_of then
            freed := {schema}.end_heads(now_at, tied, line_tids);
        else
            freed := {schema}.untie(
                now_at, tied, coalesce(tied_ends, array_fill(0::smallint, array[cardinality(tied)])), '{}', true, bits,
                ordered
            );
        end if;
        woken := woken || freed;
        if cardinality(freed) > 0 and who is not null then
            -- What became free may lie below the floors.
            floor_dues := array_fill(-1::bigint, array[cardinality(queues)]);
        end if;
    end if;
    if cardinality(applied) < count_of then
        for said.seq, said.deliveries in
            select o.place, c.deliveries from unnest(seqs) with ordinality as o (seq, place)
            left join {schema}.course c on c.seq = any (array[o.seq])
            where o.place <> all (applied)
        loop
            said.note := 2;
            return next said;
        end loop;
    end if;
    said := null;
    if otherwise is not null then
        for said.note, said.seq in
            select case when o.place > 0 then 5 else 4 end, abs(o.place) from unnest(otherwise) as o (place)
        loop
            return next said;
        end loop;
    end if;
    if who is not null then
        return query
        select * from {schema}.lease(
            now_at, who, request, holding, queues, limits, ttls, lines, floor_dues, floor_seqs, retries, turns, settings,
            shares, only_item, kind_lists
        );
    end if;
    said := null;
    if cardinality(woken) > 0 then
        -- If this lease took all there is, there is nothing left to be told of.
        for said.note, said.queue in
            select distinct 3, o.name from unnest(woken) as o (name)
            where right(o.name, 2) = ':*' or exists (
                select 1 from {schema}.course c where c.state = 'ready' and c.hold = 0 and c.queue = o.name offset 0
            )
        loop
            return next said;
        end loop;
    end if;
end
$function$;

-- :name keep_from_routes
-- Those that would die to a route that is full stay live: their kind becomes 3. Letters of one call are counted one
-- after the other, and of those only the ones that will be applied. The routes stay locked until the end.
create or replace function {schema}.keep_from_routes(
    seqs bigint[], ended integer[], kinds smallint[], letter_places integer[], letter_routes text[]
) returns smallint[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    place integer;
begin
    perform 1 from {schema}.route r where r.name = any (letter_routes) order by r.name for no key update;
    if not found then
        return kinds;
    end if;
    perform 1 from {schema}.course c where c.seq = any (seqs) order by c.seq for no key update;
    for place in
        select a.place
        from (
            select o.place, o.route, row_number() over (partition by o.route order by o.place) as nth
            from unnest(letter_places, letter_routes) as o (place, route)
            join {schema}.course c on c.seq = any (array[seqs[o.place]])
            where c.deliveries = ended[o.place] and c.lease_until is not null and c.state <> 'dead'
        ) a
        join {schema}.route r on r.name = a.route
        where a.nth + (
            select coalesce(sum(k.n), 0) from {schema}.cause k where k.route = a.route
        ) > r.capacity
    loop
        kinds[place] := 3;
    end loop;
    return kinds;
end
$function$;

-- :name refuse_clear
-- What a body in clear for an encrypted queue makes of the whole statement.
create or replace function {schema}.refuse_clear(name text) returns void
language plpgsql stable parallel safe
as $function$
begin
    if name is not null then
        raise exception '%', name using errcode = 'RD002';
    end if;
end
$function$;

-- :name follow_up
-- Puts the follow-ups of those that ended as they say. They find room in any queue.
create or replace function {schema}.follow_up(
    now_at bigint, applied integer[], places integer[], ids text[], queues text[], delays bigint[], crcs bigint[],
    packings smallint[], bodies bytea[], ats bigint[], priorities smallint[], bound_places integer[],
    order_keys text[], limit_keys text[], scopes text[], dedupe_keys text[], windows bigint[], dies smallint[],
    term_bodies bytea[], kinds text[], releases text[]
) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    meant integer[] := array(
        select o.nth from unnest(places) with ordinality as o (place, nth) where o.place = any (applied) order by o.nth
    );
    bound integer[] := array(
        select o.nth from unnest(bound_places) with ordinality as o (place, nth) where o.place = any (meant)
        order by o.nth
    );
begin
    if cardinality(meant) > 0 then
        perform {schema}.refuse_clear({schema}.in_clear(
            array(select queues[n] from unnest(meant) as n), array(select packings[n] from unnest(meant) as n)
        ));
        perform {schema}.put(
            now_at, array(select ids[n] from unnest(meant) as n), array(select queues[n] from unnest(meant) as n),
            array(select delays[n] from unnest(meant) as n), array(select crcs[n] from unnest(meant) as n),
            array(select packings[n] from unnest(meant) as n), array(select bodies[n] from unnest(meant) as n),
            array(select ats[n] from unnest(meant) as n), array(select priorities[n] from unnest(meant) as n),
            array(select array_position(meant, bound_places[n]) from unnest(bound) as n),
            array(select order_keys[n] from unnest(bound) as n), array(select limit_keys[n] from unnest(bound) as n),
            array(select scopes[n] from unnest(bound) as n), array(select dedupe_keys[n] from unnest(bound) as n),
            array(select windows[n] from unnest(bound) as n), array(select dies[n] from unnest(bound) as n),
            array(select term_bodies[n] from unnest(bound) as n), '{}', '{}',
            array(select kinds[n] from unnest(meant) as n), array(select releases[n] from unnest(meant) as n), false
        );
    end if;
end
$function$;

-- :name keep_evidence
-- What goes with the moves: results, attempts (of many the first 20 and the last 180), letters and their causes.
create or replace function {schema}.keep_evidence(
    now_at bigint, seqs bigint[], ended integer[], applied integer[], kinds smallint[],
    result_places integer[], result_packings smallint[], result_bodies bytea[],
    attempt_places integer[], attempt_bodies bytea[],
    letter_places integer[], letter_reasons text[], letter_causes text[], letter_errors text[],
    letter_shorts text[], letter_categories text[], letter_rules text[], letter_routes text[], letter_failures bytea[]
) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    long_seq bigint;
    trimmed integer;
begin
    if cardinality(result_places) > 0 then
        if exists (select 1 from {schema}.queue q where q.encrypt) then
            perform {schema}.refuse_clear(min(q.name))
            from unnest(result_places, result_packings) as o (place, packing)
            join {schema}.course c on c.seq = any (array[seqs[o.place]])
            join {schema}.queue q on q.name = c.queue and q.encrypt
            where o.place = any (applied) and o.packing <> 2;
        end if;
        insert into {schema}.result (seq, packing, body)
        select seqs[o.place], o.packing, o.body
        from unnest(result_places, result_packings, result_bodies) as o (place, packing, body)
        where o.place = any (applied);
    end if;
    if cardinality(attempt_places) > 0 then
        insert into {schema}.attempt (seq, delivery, body)
        select seqs[o.place], ended[o.place], o.body
        from unnest(attempt_places, attempt_bodies) as o (place, body)
        where o.place = any (applied)
        on conflict (seq, delivery) do nothing;
        -- An item has at most as many attempts as deliveries.
        for long_seq in
            select seqs[o.place] from unnest(attempt_places) as o (place)
            where o.place = any (applied) and ended[o.place] > 200
        loop
            with gone as (
                delete from {schema}.attempt a
                using (
                    select n.delivery, row_number() over (order by n.delivery) as nth, count(*) over () as all_of
                    from {schema}.attempt n where n.seq = long_seq
                ) o
                where a.seq = long_seq and a.delivery = o.delivery
                  and o.nth > 20 and o.nth <= o.all_of - 180
                returning 1
            )
            select count(*) into trimmed from gone;
            if trimmed > 0 then
                update {schema}.course c set omitted = c.omitted + trimmed where c.seq = long_seq;
            end if;
        end loop;
    end if;
    if cardinality(letter_places) > 0 then
        with died as (
            insert into {schema}.letter (
                seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, route, failure
            )
            select c.seq, c.queue, o.reason, now_at, 'open', o.cause, o.error, o.short, o.category, o.rule, o.route,
                   o.failure
            from unnest(
                letter_places, letter_reasons, letter_causes, letter_errors, letter_shorts, letter_categories,
                letter_rules, letter_routes, letter_failures
            ) as o (place, reason, cause, error, short, category, rule, route, failure)
            join {schema}.course c on c.seq = any (array[seqs[o.place]])
            where o.place = any (applied) and kinds[o.place] = 2
            returning seq, cause, queue, route
        ), noted as (
            insert into {schema}.unnumbered (seq) select d.seq from died d
        )
        insert into {schema}.cause (cause, queue, route, n)
        select d.cause, d.queue, d.route, count(*) from died d group by d.cause, d.queue, d.route;
    end if;
end
$function$;

-- :name call
select * from {schema}.settle(
    %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b,
    %b, %b, %b
);

-- :name finish
-- All are done, on their first try and without results: what nearly every batch of a healthy queue is.
select * from {schema}.settle(
    %b::bigint, %b, %b, %b, %b, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null, null, null, %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b
);
