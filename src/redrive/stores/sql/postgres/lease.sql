-- lease: due items of unpaused queues to one worker, as core.lanes orders them and limits let them; a suspect alone.
-- Inputs: the worker; its request, as lane:nonce; the wants as arrays, one element per want, with a line (crashes from
--   which on an item is a suspect), a floor (due time and number up to which the caller has seen everything taken), how
--   many of them may be retries (-1: any number), whose turn it is, and the thousandths of all leases that may be retries
--   (-1: any number) for each; the id of the only item that is asked for (null or empty: none is named); the kinds of each
--   want as a JSON array ('': all), or null where all are for all.
-- Outputs: rows with note 0 are leases in order; one with note 1 says that a suspect waits, one with note 6 that members of
--   a family were put off and others follow.
-- Atomicity: one statement. Rows that somebody else is taking are passed over, never waited for. Where a queue has a
--   limit or stands behind a gate, leases wait for each other: their rows are locked before anything else.
-- The planner is kept to the indexes and to one plan, whatever the statistics say: they are always old here.

-- :name labelled
-- The terms of an item as JSON with its tags in front: one column carries both.
create or replace function {schema}.labelled(of_seq bigint, terms bytea) returns bytea
language sql stable parallel safe
as $function$
    select convert_to('{"tags":' || to_json({schema}.tags_of(of_seq))::text, 'UTF8')
        || case when coalesce(terms, '{}') = '{}' then '}'::bytea else ','::bytea || substring(terms from 2) end
$function$;

-- :name payload_now
-- Of an item that this transaction has locked and that was edited. The statement that locked it may have begun before the
-- edit was committed, and then sees the earlier payload; a statement in a volatile function sees what is committed now.
create or replace function {schema}.payload_now(of_seq bigint) returns {schema}.item
language plpgsql volatile parallel unsafe
as $function$
declare
    found_item {schema}.item;
begin
    select i.* into found_item from {schema}.item i where i.seq = of_seq;
    return found_item;
end
$function$;

-- :name terms_now
-- Its terms, likewise, with its tags if it has any.
create or replace function {schema}.terms_now(of_seq bigint, ties smallint) returns bytea
language plpgsql volatile parallel unsafe
as $function$
declare
    known bytea;
begin
    select t.body into known from {schema}.terms t where t.seq = of_seq;
    return case when ties & 128 <> 0 then {schema}.labelled(of_seq, known) else known end;
end
$function$;

-- :name levels
-- The kinds among the ready of a queue (null: all, else only these) and their levels, from one on, by skipping through the
-- index.
create or replace function {schema}.levels(of_queue text, of_kinds text[], from_level integer)
returns table (kind text, level integer)
language sql stable parallel safe
as $function$
    with recursive named (kind) as (
        select (select c.kind from {schema}.course c
                where of_kinds is null and c.state = 'ready' and c.hold = 0 and c.queue = of_queue
                order by c.kind limit 1)
        union all
        select (select c.kind from {schema}.course c
                where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind > named.kind
                order by c.kind limit 1)
        from named where named.kind is not null
    ), step (kind, level) as (
        select n.kind, from_level - 1
        from (select distinct unnest(of_kinds) collate "C" union all select named.kind from named) as n (kind)
        where n.kind is not null
        union all
        select step.kind, (select c.level from {schema}.course c
                           where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = step.kind
                             and c.level > step.level
                           order by c.level limit 1)
        from step where step.level is not null
    )
    select step.kind, step.level from step where step.level >= from_level
$function$;

-- :name kinds_in
-- The kinds of a JSON array; null, which is all, for an empty text or none.
create or replace function {schema}.kinds_in(list text) returns text[]
language sql immutable parallel safe
as $function$
    select case when list <> '' then array(select jsonb_array_elements_text(list::jsonb)) end
$function$;

-- :name doors
-- The settings of those of these queues that have a limit or stand behind a gate. What they are counted by is locked,
-- so that nobody else counts meanwhile.
create or replace function {schema}.doors(of_queues text[]) returns {schema}.queue[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    settings {schema}.queue[] := array(
        select q from {schema}.queue q
        where q.name = any (of_queues) and (
            q.max_running is not null or q.max_per_key is not null or q.rate_count is not null or q.gate <> ''
        )
    );
    limited text[];
    gated text[];
begin
    if exists (select 1 from unnest(of_queues) as o (name) where strpos(o.name, ':') > 1) then
        settings := {schema}.member_doors(of_queues, settings);
    end if;
    if cardinality(settings) > 0 then
        select array_agg(s.name) filter (where s.max_running < 2147483647 or s.rate_count is not null),
               array_agg(s.gate) filter (where s.gate <> '')
        into limited, gated from unnest(settings) as s;
        if limited is not null then
            perform 1 from {schema}.pace p where p.queue = any (limited) order by p.queue for no key update;
        end if;
        if gated is not null then
            perform 1 from {schema}.gate g
            where g.name = any (gated) and (g.interval is not null or g.share is not null)
            order by g.name for no key update;
        end if;
    end if;
    return settings;
end
$function$;

-- :name member_doors
-- The settings of these queues, with those that hold for members, and their families where they bound the whole.
create or replace function {schema}.member_doors(of_queues text[], settings {schema}.queue[]) returns {schema}.queue[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    settings := array(
        select s from unnest(settings) as s where strpos(s.name, ':') < 2 or right(s.name, 2) = ':*'
    ) || array(
        select s from unnest(of_queues) as o (name) cross join lateral {schema}.settings_for(o.name, true) as s
        where strpos(o.name, ':') > 1 and right(o.name, 2) <> ':*'
          and (s.max_running is not null or s.max_per_key is not null or s.rate_count is not null or s.gate <> '')
    ) || array(
        select q from {schema}.queue q
        where q.name = any ({schema}.families_of(of_queues)) and q.max_running is not null and q.name <> all (of_queues)
    );
    insert into {schema}.pace (queue)
    select s.name from unnest(settings) as s where s.max_running < 2147483647 or s.rate_count is not null
    order by s.name
    on conflict (queue) do nothing;
    return settings;
end
$function$;

-- :name room
-- How much may be given of a queue now, and how many of it retries: as core.meters counts. Its rows are locked.
create or replace function {schema}.room(
    now_at bigint, s {schema}.queue, asked bigint, out most bigint, out most_retries bigint
)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    at_us bigint := now_at * 1000;
    between_us bigint;
    g {schema}.gate;
begin
    most := asked;
    most_retries := 2147483647;
    if s.max_running is not null then
        most := least(most, s.max_running - {schema}.running_of(s.name));
        if strpos(s.name, ':') > 1 then
            most := least(most, (
                select case when f.paused then 0 else f.max_running - {schema}.running_of(f.name) end
                from {schema}.queue f where f.name = split_part(s.name, ':', 1) || ':*'
            ));
        end if;
    end if;
    if s.rate_count is not null then
        between_us := greatest(1, s.rate_per * 1000 / s.rate_count);
        most := least(most, (
            select (at_us + coalesce(s.rate_burst, greatest(1, s.rate_count * 1000 / s.rate_per)) * between_us
                    - greatest(p.full_at, at_us)) / between_us
            from {schema}.pace p where p.queue = s.name
        ));
    end if;
    if s.gate <> '' then
        select * into g from {schema}.gate o where o.name = s.gate;
        if g.interval is not null then
            most := least(most, (at_us + g.burst * g.interval - greatest(g.next_at, at_us)) / g.interval);
        elsif g.share is not null then
            most_retries := g.credit / 1000 + greatest(0, (at_us + g.floor - greatest(g.floor_at, at_us)) / g.floor);
        end if;
    end if;
    most := greatest(most, 0);
end
$function$;

-- :name spend
-- So many first attempts and retries of a queue were given.
create or replace function {schema}.spend(now_at bigint, s {schema}.queue, firsts bigint, retries bigint) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    at_us bigint := now_at * 1000;
begin
    if s.rate_count is not null then
        update {schema}.pace p
        set full_at = greatest(p.full_at, at_us)
            + (firsts + retries) * greatest(1, s.rate_per * 1000 / s.rate_count)
        where p.queue = s.name;
    end if;
    if s.gate <> '' then
        update {schema}.gate g
        set next_at = case when g.interval is null then g.next_at
                           else greatest(g.next_at, at_us) + (firsts + retries) * g.interval end,
            credit = case when g.interval is not null or g.share is null then g.credit
                          else least(g.cap, g.credit - 1000 * least(retries, g.credit / 1000) + firsts * g.share) end,
            floor_at = case when g.interval is not null or g.share is null or retries <= g.credit / 1000 then g.floor_at
                            else greatest(g.floor_at, at_us) + (retries - g.credit / 1000) * g.floor end
        where g.name = s.gate and (g.interval is not null or g.share is not null);
    end if;
end
$function$;

-- :name function
create or replace function {schema}.lease(
    pinned bigint, who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
    lines integer[], floor_dues bigint[], floor_seqs bigint[], retries integer[], turns bigint[],
    settings {schema}.queue[] default null, shares integer[] default null, only_item text default null,
    kind_lists text[] default null, again boolean default false
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
    now_at bigint;
    suspect_waits boolean := false;
    mixed boolean[] := '{}';
    serving boolean[] := '{}';
    is_open boolean;
    is_mixed boolean;
    s {schema}.queue;
    most bigint;
    floor_due bigint;
    wanted text[];
    given_now bigint;
    said {schema}.given;
begin
    settings := coalesce(settings, {schema}.doors(queues));
    -- A repeat of a request whose answer was lost waits here for the end of the first, and then finds what it gave.
    if not again then
        perform pg_advisory_xact_lock(hashtextextended(who, hashtext('{schema}.lease')));
    end if;
    now_at := {schema}.now_ms(pinned);
    if not again and exists (select 1 from {schema}.nonce n
               where n.worker = who and n.lane = split_part(request, ':', 1) and n.nonce = request) then
        return query
        select 0::smallint, c.seq, i.id, c.queue, i.body, i.crc, i.packing, i.enqueued_at,
               c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
               c.replays, c.last_chance, c.alone, c.worker, c.leased_at, c.lease_until,
               c.priority, case when c.ties & 128 <> 0 then {schema}.labelled(c.seq, t.body) else t.body end,
               t.gap, t.cancel, c.kind, i.release
        from {schema}.nonce n
        cross join unnest(n.seqs, n.deliveries) with ordinality as o (seq, delivery, place)
        join {schema}.course c on c.seq = any (array[o.seq])
        join {schema}.item i on i.seq = any (array[o.seq])
        left join {schema}.terms t on t.seq = any (array[case when c.ties & 64 <> 0 then c.seq end])
        where n.worker = who and n.lane = split_part(request, ':', 1) and c.deliveries = o.delivery and c.lease_until is not null
        order by o.place;
        return;
    end if;
    -- Not even a worker's own mistake may put a neighbour beside a suspect.
    if not again and exists (select 1 from {schema}.course c where c.worker = who and c.alone = 1) then
        return;
    end if;
    if not again and exists (select 1 from unnest(queues) as o (name) where right(o.name, 2) = ':*') then
        return query
        select * from {schema}.lease_families(
            now_at, who, request, holding, queues, limits, ttls, lines, floor_dues, floor_seqs, retries, turns,
            settings, shares, kind_lists
        );
        return;
    end if;
    if only_item <> '' then
        if cardinality(settings) > 0 then
            s := settings[1];
        end if;
        return query
        select * from {schema}.give_one(
            s, now_at, who, request, holding, only_item, queues[1], ttls[1], greatest(lines[1], 0) * 6
        );
        return;
    end if;
    for want in 1 .. cardinality(queues) loop
        select limits[want] > 0
               and not exists (select 1 from {schema}.queue q where q.name = queues[want] and q.paused),
               exists (select 1 from {schema}.course c
                       where c.state = 'ready' and c.hold = 0 and c.queue = queues[want]
                         and (c.kind, c.level) > ('', 0))
        into is_open, is_mixed;
        serving[want] := is_open;
        mixed[want] := is_mixed;
        if suspect_waits or not is_open or not (is_mixed or lines[want] <= 0) then
            continue;
        end if;
        if cardinality(settings) > 0 then
            select q.* into s from unnest(settings) as q where q.name = queues[want];
        end if;
        wanted := {schema}.kinds_in(kind_lists[want]);
        if holding <= 0 then
            return query
            select * from {schema}.give_suspect(
                s, now_at, who, request, queues[want], wanted, ttls[want], greatest(lines[want], 0) * 6
            );
            if found then
                return;
            end if;
        else
            suspect_waits := {schema}.suspect_waits(s, now_at, queues[want], wanted, greatest(lines[want], 0) * 6);
        end if;
    end loop;
    for want in 1 .. cardinality(queues) loop
        if not serving[want] or lines[want] <= 0 then
            continue;
        end if;
        wanted := {schema}.kinds_in(kind_lists[want]);
        if not mixed[want] and '' <> all (wanted) then
            continue;
        end if;
        if cardinality(settings) > 0 then
            select q.* into s from unnest(settings) as q where q.name = queues[want];
        end if;
        if mixed[want] or s.max_per_key is not null then
            return query
            select * from {schema}.give_chosen(
                s, now_at, who, request, queues[want], wanted, limits[want], ttls[want],
                case when mixed[want] then lines[want] * 6 else 1 end, retries[want], turns[want],
                nullif(shares[want], -1), floor_dues[want], floor_seqs[want]
            );
            continue;
        end if;
        most := limits[want];
        floor_due := floor_dues[want];
        if s.max_running is not null or s.rate_count is not null or s.gate <> '' then
            most := (select r.most from {schema}.room(now_at, s, most) as r);
        end if;
        -- The earliest due in level 0, counted before they are given: a crash between here and the handler is in the
        -- books already. What lies below the floor is looked for only if there is nothing above it: entries of what was
        -- taken stay in the index as long as anybody has an old snapshot, and need not be passed each time.
        loop
            return query
            with picked as materialized (
                select c.seq
                from {schema}.course c
                where c.state = 'ready' and c.hold = 0 and c.queue = queues[want] and c.kind = '' and c.level = 0
                  and c.due_at <= now_at and (c.due_at, c.seq) > (floor_due, floor_seqs[want])
                order by c.due_at, c.seq
                limit most
                for no key update of c skip locked
            ), given as (
                update {schema}.course c
                set state = 'leased', deliveries = c.deliveries + 1, attempt = c.attempt + 1, worker = who,
                    leased_at = now_at, lease_until = now_at + ttls[want], alone = 0
                from picked p
                where c.seq = any (array[p.seq])
                returning c.seq, c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes, c.replays,
                          c.last_chance, c.priority, c.ties
            ), kept as (
                insert into {schema}.nonce as n (worker, lane, nonce, at, seqs, deliveries)
                select who, split_part(request, ':', 1), request, now_at, array_agg(g.seq), array_agg(g.deliveries)
                from (select g.seq, g.deliveries from given g order by g.due_at, g.seq) g having count(*) > 0
                on conflict (worker, lane) do update
                set nonce = excluded.nonce, at = excluded.at,
                    seqs = case when n.nonce = excluded.nonce then n.seqs || excluded.seqs else excluded.seqs end,
                    deliveries = case when n.nonce = excluded.nonce then n.deliveries || excluded.deliveries
                                      else excluded.deliveries end
            ), counted as (
                insert into {schema}.counter (queue, ready, leased)
                select queues[want], -count(*), count(*) from given having count(*) > 0
            ), running as (
                insert into {schema}.slot as s (queue, key, running)
                select queues[want], t.limit_key, count(*)
                from given g
                cross join lateral (select n.limit_key from {schema}.terms n where n.seq = g.seq offset 0) t
                where g.ties & 16 <> 0 group by t.limit_key order by t.limit_key
                on conflict (queue, key) do update set running = s.running + excluded.running
            )
            select 0::smallint, c.seq, i.id, i.queue,
                   case when c.ties & 512 = 0 then i.body else ({schema}.payload_now(c.seq)).body end,
                   case when c.ties & 512 = 0 then i.crc else ({schema}.payload_now(c.seq)).crc end,
                   case when c.ties & 512 = 0 then i.packing else ({schema}.payload_now(c.seq)).packing end,
                   i.enqueued_at,
                   c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
                   c.replays, c.last_chance, 0::smallint, who, now_at, now_at + ttls[want],
                   c.priority,
                   case when c.ties & 512 <> 0 then {schema}.terms_now(c.seq, c.ties)
                        when c.ties & 128 <> 0 then {schema}.labelled(c.seq, t.body) else t.body end,
                   t.gap, t.cancel, '', i.release
            from given c
            cross join lateral (select n.* from {schema}.item n where n.seq = c.seq offset 0) i
            left join lateral (
                select n.body, n.gap, n.cancel from {schema}.terms n where c.ties & 64 <> 0 and n.seq = c.seq offset 0
            ) t on true
            order by c.due_at, c.seq;
            get diagnostics given_now = row_count;
            exit when given_now > 0 or floor_due < 0;
            floor_due := -1;
        end loop;
        if given_now > 0 and (s.rate_count is not null or s.gate <> '') then
            perform {schema}.spend(now_at, s, given_now, 0);
        end if;
    end loop;
    if suspect_waits then
        said.note := 1;
        return next said;
    end if;
end
$function$;

-- :name call
select * from {schema}.lease(
    %b::bigint, %b, %b, %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, shares => %b, only_item => %b, kind_lists => %b
);
