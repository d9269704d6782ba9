-- settle: ends leases, each only if its delivery is the current one of a leased item; then leases anew.
-- Inputs: the settlements as arrays: number (0: look it up by id), delivery, kind (0 done, 1 ready, 2 dead, 9 only to be
--   judged), delay, charge (1 error, 2 crash, 3 the attempt is given back); kinds null: all are done and nothing else.
--   Results, attempts, letters and follow-ups name the place (from 1) of their settlement. Then a lease request.
-- Outputs: rows with note 2 are settlements that were not applied: their place in seq, and in deliveries the current
--   delivery (null: no such item). The others are those of lease.
-- Atomicity: one statement with attempts, letters, counters, follow-ups and the next lease. One refusal fails nothing.
--   Rows are locked in the order of their numbers, as everywhere, so that no two wait for each other.
-- That an item is leased is told by lease_until, which no index knows: so only its number can lead to it.

-- :name function
create or replace function {schema}.settle(
    pinned bigint, seqs bigint[], ids text[], ended integer[],
    kinds smallint[], delays bigint[], charges smallint[],
    result_places integer[], result_packings smallint[], result_bodies bytea[],
    attempt_places integer[], attempt_bodies bytea[],
    letter_places integer[], letter_reasons text[], letter_causes text[], letter_errors text[],
    letter_shorts text[], letter_categories text[], letter_rules text[], letter_failures bytea[],
    new_places integer[], new_ids text[], new_queues text[], new_delays bigint[], new_crcs bigint[],
    new_packings smallint[], new_bodies bytea[],
    who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
    lines integer[], floor_dues bigint[], floor_seqs bigint[]
) returns table (
    note smallint, seq bigint, id text, queue text, body bytea, crc bigint, packing smallint, enqueued_at bigint,
    due_at bigint, renewed_at bigint, deliveries integer, attempt integer, errors integer, crashes integer,
    replays integer, last_chance boolean, alone smallint, worker text, leased_at bigint, lease_until bigint
)
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
    applied integer[];
begin
    if ids is not null then
        seqs := array(
            select coalesce(nullif(o.seq, 0), (select i.seq from {schema}.item i where i.id = o.id), 0)
            from unnest(seqs, ids) with ordinality as o (seq, id, place)
            order by o.place
        );
    end if;
    if count_of = 0 then
        applied := '{}';
    elsif kinds is null then
        with moved as (
            update {schema}.course c
            set state = 'done', ended_at = now_at, lease_until = null, alone = 0
            from (
                select * from unnest(seqs, ended) with ordinality as n (seq, delivery, place) order by n.seq
            ) o
            where c.seq = o.seq and c.deliveries = o.delivery and c.lease_until is not null
            returning c.queue, o.place
        ), counted as (
            insert into {schema}.counter (queue, leased, done)
            select m.queue, -count(*), count(*) from moved m group by m.queue
        )
        select coalesce(array_agg(m.place), '{}') into applied from moved m;
    else
        with moved as (
            update {schema}.course c
            set state = case o.kind when 0 then 'done' when 1 then 'ready' else 'dead' end,
                due_at = case o.kind when 1 then now_at + o.delay else c.due_at end,
                ended_at = case o.kind when 1 then c.ended_at else now_at end,
                errors = c.errors + case o.charge when 1 then 1 else 0 end,
                crashes = c.crashes + case o.charge when 2 then 1 else 0 end,
                attempt = c.attempt - case o.charge when 3 then 1 else 0 end,
                lease_until = null, alone = 0
            from (
                select * from unnest(seqs, ended, kinds, delays, charges) with ordinality
                     as n (seq, delivery, kind, delay, charge, place)
                order by n.seq
            ) o
            where c.seq = o.seq and c.deliveries = o.delivery and c.lease_until is not null and o.kind < 9
            returning c.queue, o.kind, o.place
        ), counted as (
            insert into {schema}.counter (queue, leased, done, ready, open)
            select m.queue, -count(*), count(*) filter (where m.kind = 0), count(*) filter (where m.kind = 1),
                   count(*) filter (where m.kind = 2)
            from moved m group by m.queue
        )
        select coalesce(array_agg(m.place), '{}') into applied from moved m;
        perform {schema}.keep_evidence(
            now_at, seqs, ended, applied, result_places, result_packings, result_bodies, attempt_places, attempt_bodies,
            letter_places, letter_reasons, letter_causes, letter_errors, letter_shorts, letter_categories, letter_rules,
            letter_failures
        );
        if cardinality(new_places) > 0 then
            perform {schema}.put(
                now_at, array_agg(o.id), array_agg(o.queue), array_agg(o.delay), array_agg(o.crc),
                array_agg(o.packing), array_agg(o.body)
            )
            from (
                select * from unnest(new_places, new_ids, new_queues, new_delays, new_crcs, new_packings, new_bodies)
                     with ordinality as n (place, id, queue, delay, crc, packing, body, nth)
                where n.place = any (applied) order by n.nth
            ) o
            having count(*) > 0;
        end if;
    end if;
    if cardinality(applied) < count_of then
        return query
        select 2::smallint, o.place, null::text, null::text, null::bytea, null::bigint, null::smallint,
               null::bigint, null::bigint, null::bigint, c.deliveries, null::integer, null::integer, null::integer,
               null::integer, null::boolean, null::smallint, null::text, null::bigint, null::bigint
        from unnest(seqs) with ordinality as o (seq, place)
        left join {schema}.course c on c.seq = o.seq
        where o.place <> all (applied);
    end if;
    if who is not null then
        return query
        select * from {schema}.lease(
            now_at, who, request, holding, queues, limits, ttls, lines, floor_dues, floor_seqs
        );
    end if;
end
$function$;

-- :name keep_evidence
-- What goes with the moves: results, attempts (of many the first 20 and the last 180), letters and their causes.
create or replace function {schema}.keep_evidence(
    now_at bigint, seqs bigint[], ended integer[], applied integer[],
    result_places integer[], result_packings smallint[], result_bodies bytea[],
    attempt_places integer[], attempt_bodies bytea[],
    letter_places integer[], letter_reasons text[], letter_causes text[], letter_errors text[],
    letter_shorts text[], letter_categories text[], letter_rules text[], letter_failures bytea[]
) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    long_seq bigint;
    trimmed integer;
begin
    if cardinality(result_places) > 0 then
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
                seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure
            )
            select c.seq, c.queue, o.reason, now_at, 'open', o.cause, o.error, o.short, o.category, o.rule, o.failure
            from unnest(
                letter_places, letter_reasons, letter_causes, letter_errors, letter_shorts, letter_categories,
                letter_rules, letter_failures
            ) as o (place, reason, cause, error, short, category, rule, failure)
            join {schema}.course c on c.seq = seqs[o.place]
            where o.place = any (applied)
            returning cause, queue
        )
        insert into {schema}.cause (cause, queue, n)
        select d.cause, d.queue, count(*) from died d group by d.cause, d.queue;
    end if;
end
$function$;

-- :name call
select * from {schema}.settle(
    %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b
);

-- :name finish
-- All are done, on their first try and without results: what nearly every batch of a healthy queue is.
select * from {schema}.settle(
    %b::bigint, %b, %b, %b, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null, null, null, null, null, null, %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b
);
