-- lease: due items of unpaused queues to one worker, in due order; a suspect alone.
-- Inputs: the request as arrays, one element per want, with a line (crashes from which on an item is a suspect) and a
--   floor (due time and number up to which the caller has seen everything taken) for each.
-- Outputs: rows with note 0 are leases in order; one with note 1 says that a suspect waits.
-- Atomicity: one statement. Rows that somebody else is taking are passed over, never waited for.
-- The planner is kept to the indexes and to one plan, whatever the statistics say: they are always old here.

-- :name levels
-- The crash counts among the ready of a queue, from one on, by skipping through the index.
create or replace function {schema}.levels(of_queue text, from_crashes integer) returns integer[]
language sql stable parallel safe
as $function$
    with recursive level (n) as (
        select (select c.crashes from {schema}.course c
                where c.state = 'ready' and c.queue = of_queue and c.crashes >= from_crashes
                order by c.crashes limit 1)
        union all
        select (select c.crashes from {schema}.course c
                where c.state = 'ready' and c.queue = of_queue and c.crashes > level.n
                order by c.crashes limit 1)
        from level where level.n is not null
    )
    select coalesce(array_agg(n), '{}') from level where n is not null
$function$;

-- :name hand_over
-- The earliest due of one queue with these crash counts, counted before they are given: a crash between here and the
-- handler is in the books already. What lies below the floor is looked for only if there is nothing above it: entries
-- of what was taken stay in the index as long as anybody has an old snapshot, and need not be passed each time.
create or replace function {schema}.hand_over(
    now_at bigint, who text, request text, of_queue text, levels integer[], most integer, ttl bigint,
    alone_as smallint, floor_due bigint, floor_seq bigint
) returns table (
    note smallint, seq bigint, id text, queue text, body bytea, crc bigint, packing smallint, enqueued_at bigint,
    due_at bigint, renewed_at bigint, deliveries integer, attempt integer, errors integer, crashes integer,
    replays integer, last_chance boolean, alone smallint, worker text, leased_at bigint, lease_until bigint
)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    loop
        return query
        with picked as materialized (
            select p.seq
            from unnest(levels) as l (crashes)
            cross join lateral (
                select c.seq, c.due_at
                from {schema}.course c
                where c.state = 'ready' and c.queue = of_queue and c.crashes = l.crashes and c.due_at <= now_at
                  and (c.due_at, c.seq) > (case when l.crashes = 0 then floor_due else -1 end, floor_seq)
                order by c.due_at, c.seq
                limit most
                for no key update of c skip locked
            ) p
            order by p.due_at, p.seq
            limit most
        ), given as (
            update {schema}.course c
            set state = 'leased', deliveries = c.deliveries + 1, attempt = c.attempt + 1, worker = who,
                leased_at = now_at, lease_until = now_at + ttl, alone = alone_as
            from picked p
            where c.seq = p.seq
            returning c.*
        ), kept as (
            insert into {schema}.nonce as n (worker, nonce, at, seqs, deliveries)
            select who, request, now_at, array_agg(g.seq order by g.due_at, g.seq),
                   array_agg(g.deliveries order by g.due_at, g.seq)
            from given g having count(*) > 0
            on conflict (worker) do update
            set nonce = excluded.nonce, at = excluded.at,
                seqs = case when n.nonce = excluded.nonce then n.seqs || excluded.seqs else excluded.seqs end,
                deliveries = case when n.nonce = excluded.nonce then n.deliveries || excluded.deliveries
                                  else excluded.deliveries end
        ), counted as (
            insert into {schema}.counter (queue, ready, leased)
            select of_queue, -count(*), count(*) from given having count(*) > 0
        )
        select 0::smallint, c.seq, i.id, c.queue, i.body, i.crc, i.packing, i.enqueued_at,
               c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
               c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until
        from given c
        join {schema}.item i on i.seq = c.seq
        order by c.due_at, c.seq;
        exit when found or floor_due < 0;
        floor_due := -1;
    end loop;
end
$function$;

-- :name function
create or replace function {schema}.lease(
    pinned bigint, who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
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
    now_at bigint;
    suspect_waits boolean := false;
    serving boolean[] := '{}';
    crashed boolean[] := '{}';
    open boolean;
    any_crashed boolean;
    suspects integer[];
begin
    -- A repeat of a request whose answer was lost waits here for the end of the first, and then finds what it gave.
    perform pg_advisory_xact_lock(hashtextextended(who, hashtext('{schema}.lease')));
    now_at := {schema}.now_ms(pinned);
    if exists (select 1 from {schema}.nonce n where n.worker = who and n.nonce = request) then
        return query
        select 0::smallint, c.seq, i.id, c.queue, i.body, i.crc, i.packing, i.enqueued_at,
               c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
               c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until
        from {schema}.nonce n
        cross join unnest(n.seqs, n.deliveries) with ordinality as o (seq, delivery, place)
        join {schema}.course c on c.seq = o.seq
        join {schema}.item i on i.seq = o.seq
        where n.worker = who and c.deliveries = o.delivery and c.lease_until is not null
        order by o.place;
        return;
    end if;
    -- Not even a worker's own mistake may put a neighbour beside a suspect.
    if exists (select 1 from {schema}.course c where c.worker = who and c.alone = 1) then
        return;
    end if;
    for want in 1 .. cardinality(queues) loop
        select limits[want] > 0
               and not exists (select 1 from {schema}.queue q where q.name = queues[want] and q.paused),
               exists (select 1 from {schema}.course c
                       where c.state = 'ready' and c.queue = queues[want] and c.crashes > 0)
        into open, any_crashed;
        serving := serving || open;
        crashed := crashed || any_crashed;
        if suspect_waits or not open or not (any_crashed or lines[want] <= 0) then
            continue;
        end if;
        suspects := {schema}.levels(queues[want], greatest(lines[want], 0));
        if holding <= 0 then
            return query
            select * from {schema}.hand_over(
                now_at, who, request, queues[want], suspects, 1, ttls[want], 1::smallint, -1, 0
            );
            if found then
                return;
            end if;
        end if;
        suspect_waits := holding > 0 and exists (
            select 1 from unnest(suspects) as l (crashes)
            join {schema}.course c on c.crashes = l.crashes
            where c.state = 'ready' and c.queue = queues[want] and c.due_at <= now_at
        );
    end loop;
    for want in 1 .. cardinality(queues) loop
        if serving[want] and lines[want] > 0 then
            return query
            select * from {schema}.hand_over(
                now_at, who, request, queues[want],
                case when crashed[want] then array(
                    select n from unnest({schema}.levels(queues[want], 0)) as l (n) where n < lines[want]
                ) else '{0}' end,
                limits[want], ttls[want], 0::smallint, floor_dues[want], floor_seqs[want]
            );
        end if;
    end loop;
    if suspect_waits then
        return query
        select 1::smallint, null::bigint, null::text, null::text, null::bytea, null::bigint, null::smallint,
               null::bigint, null::bigint, null::bigint, null::integer, null::integer, null::integer, null::integer,
               null::integer, null::boolean, null::smallint, null::text, null::bigint, null::bigint;
    end if;
end
$function$;

-- :name call
select * from {schema}.lease(%b::bigint, %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b);
