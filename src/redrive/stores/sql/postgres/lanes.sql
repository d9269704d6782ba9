-- lanes: lease where more than plain first attempts wait, or where a limit key may be full. Twin of core.lanes.choose.
-- Inputs: the queue's settings (null: none), what was asked for. Outputs: rows as those of lease.
-- Atomicity: within the statement of lease or settle. What is looked at is locked, and passed over by others.

-- :name choose
-- The next of a queue, in the order in which core.lanes.choose gives them: numbers, and which of them are retries. A
-- lane is a priority, first attempts or retries; each is in due order.
create or replace function {schema}.choose(
    now_at bigint, of_queue text, of_kinds text[], below_level integer, most bigint, retries bigint, most_retries bigint,
    turn bigint, share bigint, floor_due bigint, floor_seq bigint, out seqs bigint[], out tried boolean[]
)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    names text[];
    levels integer[];
    of_each bigint;
    ends bigint[];
    numbers bigint[];
    dues bigint[];
    heads integer[];
    tails integer[];
    turns constant integer[] := array[[1, 0, 2], [0, 2, 1], [2, 0, 1]];
    turn_of integer;
    lane integer;
    other integer;
    taken integer := 0;
    given integer := 0;
    may integer;
    lease_no bigint;
    of_its_own bigint;
    may_retry boolean;
    is_enough boolean;
begin
    seqs := '{}';
    tried := '{}';
    select array_agg(l.kind), array_agg(l.level), coalesce(max(l.alike), 1) into names, levels, of_each
    from (
        select n.kind, n.level, count(*) over (partition by n.level) as alike
        from {schema}.levels(of_queue, of_kinds, 0) as n where n.level < below_level
    ) l;
    -- A share of each kind is read first, and all of each only where that may not have been enough: where the last that
    -- was read of a kind is among the first of its lane. What is read is locked, so there is less to spare than elsewhere.
    of_each := case when of_each = 1 then most else least(most, most / of_each + 4) end;
    if 0 = all (levels) then
        -- Nothing was tried before or has a priority: the time alone decides.
        loop
            with due as materialized (
                select l.kind, p.due_at, p.seq
                from unnest(names) as l (kind)
                cross join lateral (
                    select c.seq, c.due_at
                    from {schema}.course c
                    where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = l.kind and c.level = 0
                      and c.due_at <= now_at and (c.due_at, c.seq) > (floor_due, floor_seq)
                    order by c.due_at, c.seq
                    limit of_each
                    for no key update of c skip locked
                ) p
            ), sorted as (
                select d.seq, d.kind, row_number() over (order by d.due_at, d.seq) as nth from due d
            ), of_kind as (
                select count(*) as read, max(s.nth) as last from sorted s group by s.kind
            )
            select coalesce(array_agg(s.seq order by s.nth) filter (where s.nth <= most), '{}'),
                   not exists (select 1 from of_kind k where k.read = of_each and k.last < most)
            into seqs, is_enough from sorted s;
            exit when is_enough or of_each = most;
            of_each := most;
        end loop;
        tried := array_fill(false, array[cardinality(seqs)]);
        return;
    end if;
    loop
        with due as materialized (
            select l.kind, l.level, p.due_at, p.seq
            from unnest(names, levels) as l (kind, level)
            cross join lateral (
                select c.seq, c.due_at
                from {schema}.course c
                where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = l.kind and c.level = l.level
                  and c.due_at <= now_at
                  and (c.due_at, c.seq) > (case when l.level = 0 then floor_due else -1 end, floor_seq)
                order by c.due_at, c.seq
                limit of_each
                for no key update of c skip locked
            ) p
        ), sorted as (
            select d.seq, d.due_at, d.kind, d.level, d.level % 3 * 2 + d.level / 3 % 2 as lane,
                   row_number() over (order by d.level % 3 * 2 + d.level / 3 % 2, d.due_at, d.seq) as nth
            from due d
        ), lanes as materialized (
            select n.lane, min(n.nth) as head, max(n.nth) as tail from sorted n group by n.lane
        )
        select coalesce(array_agg(o.seq order by o.nth), '{}'), coalesce(array_agg(o.due_at order by o.nth), '{}'),
               array(select coalesce((select n.head from lanes n where n.lane = l), 1) from generate_series(0, 5) l),
               array(select coalesce((select n.tail from lanes n where n.lane = l), 0) from generate_series(0, 5) l),
               case when of_each < most then array(
                   select array[n.lane + 1, max(n.nth)]
                   from sorted n group by n.kind, n.level, n.lane having count(*) = of_each
               ) end
        into numbers, dues, heads, tails, ends from sorted o;
        exit when of_each = most or not exists (
            select 1 from generate_subscripts(ends, 1) as at where ends[at][2] - heads[ends[at][1]] + 1 < most
        );
        of_each := most;
    end loop;
    if cardinality(numbers) = tails[1] then
        -- Nothing else is due.
        seqs := numbers[1:most::integer];
        tried := array_fill(false, array[cardinality(seqs)]);
        return;
    end if;
    foreach may in array array[
        case when retries is null then most_retries else least(retries, most_retries) end, most_retries
    ] loop
        <<one_by_one>>
        while taken < most loop
            lease_no := turn + taken;
            turn_of := case lease_no % 20 when 9 then 2 when 19 then 3 else 1 end;
            -- The turns of each priority are counted for themselves.
            of_its_own := case when turn_of > 1 then lease_no / 20
                else lease_no / 20 * 18 + lease_no % 20 - case when lease_no % 20 > 9 then 1 else 0 end end;
            may_retry := given < may and (share is null or of_its_own * share % 1000 + share >= 1000);
            lane := null;
            for nth in 1 .. 3 loop
                lane := turns[turn_of][nth] * 2 + 1;
                other := lane + 1;
                if may_retry and heads[other] <= tails[other] and (
                    heads[lane] > tails[lane]
                    or (dues[heads[other]], numbers[heads[other]]) < (dues[heads[lane]], numbers[heads[lane]])
                ) then
                    lane := other;
                end if;
                exit when heads[lane] <= tails[lane];
                lane := null;
            end loop;
            exit one_by_one when lane is null;
            seqs[taken + 1] := numbers[heads[lane]];
            tried[taken + 1] := lane % 2 = 0;
            heads[lane] := heads[lane] + 1;
            taken := taken + 1;
            given := given + case when lane % 2 = 0 then 1 else 0 end;
        end loop;
        share := null;
    end loop;
end
$function$;

-- :name set_aside
-- Of these items, which this transaction has locked, those whose limit key has no room get the hold `limit`. Gives the
-- others in their order, which are counted in their slots. Those stay locked until the end, so that nobody gives one
-- back unseen.
create or replace function {schema}.set_aside(of_queue text, most_of_key bigint, seqs bigint[]) returns bigint[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    full_keys text[];
    beyond bigint[];
    late bigint[];
begin
    -- As if there were room for all, which makes one look at each slot enough where there is.
    with asked as materialized (
        select t.limit_key as key, count(*) as n
        from unnest(seqs) as o (seq)
        cross join lateral (
            select n.limit_key from {schema}.terms n where n.seq = o.seq and n.limit_key <> '' offset 0
        ) t
        group by t.limit_key
    ), counted as (
        insert into {schema}.slot as s (queue, key, running)
        select of_queue, a.key, a.n from asked a order by a.key
        on conflict (queue, key) do update set running = s.running + excluded.running
        returning s.key, s.running
    )
    select array_agg(c.key), array_agg(c.running - most_of_key) into full_keys, beyond
    from counted c where c.running > most_of_key;
    if full_keys is null then
        return seqs;
    end if;
    with asked as (
        select o.seq, t.limit_key as key, row_number() over (partition by t.limit_key order by o.nth desc) as from_last
        from unnest(seqs) with ordinality as o (seq, nth)
        cross join lateral (
            select n.limit_key from {schema}.terms n where n.seq = o.seq and n.limit_key = any (full_keys) offset 0
        ) t
    ), late as materialized (
        select a.seq, a.key from asked a where a.from_last <= beyond[array_position(full_keys, a.key)]
    ), given_back as (
        update {schema}.slot s set running = s.running - l.n
        from (select of_queue as queue, l.key, count(*) as n from late l group by l.key) l
        where s.queue = any (array[l.queue]) and s.key = l.key
    ), kept as (
        insert into {schema}.aside (queue, key, seq) select of_queue, l.key, l.seq from late l
    ), held as (
        update {schema}.course c set hold = 3 from late l where c.seq = any (array[l.seq]) returning c.seq
    ), counted as (
        insert into {schema}.counter (queue, ready, held)
        select of_queue, -count(*), count(*) from held having count(*) > 0
    )
    select coalesce(array_agg(h.seq), '{}') into late from held h;
    return array(
        select o.seq from unnest(seqs) with ordinality as o (seq, nth) where o.seq <> all (late) order by o.nth
    );
end
$function$;

-- :name give
-- These items, which this transaction has locked, in this order. in_slots: they are counted there already.
create or replace function {schema}.give(
    now_at bigint, who text, request text, of_queue text, seqs bigint[], ttl bigint, alone_as smallint, in_slots boolean
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    return query
    with given as (
        update {schema}.course c
        set state = 'leased', deliveries = c.deliveries + 1, attempt = c.attempt + 1, worker = who,
            leased_at = now_at, lease_until = now_at + ttl, alone = alone_as
        from unnest(seqs) with ordinality as o (seq, nth)
        where c.seq = any (array[o.seq])
        returning c.seq, c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes, c.replays,
                  c.last_chance, c.priority, c.ties, c.kind, o.nth
    ), kept as (
        insert into {schema}.nonce as n (worker, lane, nonce, at, seqs, deliveries)
        select who, split_part(request, ':', 1), request, now_at, array_agg(g.seq), array_agg(g.deliveries)
        from (select g.seq, g.deliveries from given g order by g.nth) g having count(*) > 0
        on conflict (worker, lane) do update
        set nonce = excluded.nonce, at = excluded.at,
            seqs = case when n.nonce = excluded.nonce then n.seqs || excluded.seqs else excluded.seqs end,
            deliveries = case when n.nonce = excluded.nonce then n.deliveries || excluded.deliveries
                              else excluded.deliveries end
    ), counted as (
        insert into {schema}.counter (queue, ready, leased)
        select of_queue, -count(*), count(*) from given having count(*) > 0
    ), running as (
        insert into {schema}.slot as s (queue, key, running)
        select of_queue, t.limit_key, count(*)
        from given g
        cross join lateral (select n.limit_key from {schema}.terms n where n.seq = g.seq offset 0) t
        where not in_slots and g.ties & 16 <> 0 group by t.limit_key order by t.limit_key
        on conflict (queue, key) do update set running = s.running + excluded.running
    )
    select 0::smallint, c.seq, i.id, i.queue, i.body, i.crc, i.packing, i.enqueued_at,
           c.due_at, c.renewed_at, c.deliveries, c.attempt, c.errors, c.crashes,
           c.replays, c.last_chance, alone_as, who, now_at, now_at + ttl,
           c.priority, case when c.ties & 128 <> 0 then {schema}.labelled(c.seq, t.body) else t.body end,
           t.gap, t.cancel, c.kind, i.release
    from given c
    cross join lateral (select n.* from {schema}.item n where n.seq = c.seq offset 0) i
    left join lateral (
        select n.body, n.gap, n.cancel from {schema}.terms n where c.ties & 64 <> 0 and n.seq = c.seq offset 0
    ) t on true
    order by c.nth;
end
$function$;

-- :name give_chosen
-- Round by round: as long as some of what was chosen had to be set aside, others are chosen in their place.
-- below_level: of which levels; 1 is plain first attempts alone.
create or replace function {schema}.give_chosen(
    s {schema}.queue, now_at bigint, who text, request text, of_queue text, of_kinds text[], asked bigint, ttl bigint,
    below_level integer, retries bigint, turn bigint, share bigint, floor_due bigint, floor_seq bigint
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    most bigint := asked;
    most_retries bigint := 2147483647;
    chosen record;
    free_ones bigint[];
    given bigint := 0;
    tried bigint := 0;
    passed bigint := 0;
begin
    if s.max_running is not null or s.rate_count is not null or s.gate <> '' then
        select * into most, most_retries from {schema}.room(now_at, s, asked);
        if most = 0 then
            return;
        end if;
    end if;
    loop
        if below_level = 1 then
            -- Only plain first attempts wait, which go in due order.
            select array(
                select c.seq
                from {schema}.course c
                where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = '' and c.level = 0
                  and c.due_at <= now_at and (c.due_at, c.seq) > (floor_due, floor_seq)
                order by c.due_at, c.seq
                limit most - given
                for no key update of c skip locked
            ) as seqs, '{}'::boolean[] as tried into chosen;
        else
            select * into chosen from {schema}.choose(
                now_at, of_queue, of_kinds, below_level, most - given,
                case when retries >= 0 then greatest(retries - tried, 0) end, most_retries - tried, turn + given,
                share, floor_due, floor_seq
            );
        end if;
        if cardinality(chosen.seqs) = 0 then
            exit when floor_due < 0;
            floor_due := -1;
            continue;
        end if;
        free_ones := chosen.seqs;
        if s.max_per_key is not null then
            free_ones := {schema}.set_aside(of_queue, s.max_per_key, chosen.seqs);
        end if;
        if below_level > 1 then
            tried := tried + (
                select count(*) from unnest(chosen.seqs, chosen.tried) as o (seq, tried)
                where o.tried and o.seq = any (free_ones)
            );
        end if;
        return query
        select * from {schema}.give(
            now_at, who, request, of_queue, free_ones, ttl, 0::smallint, s.max_per_key is not null
        );
        given := given + cardinality(free_ones);
        passed := passed + cardinality(chosen.seqs) - cardinality(free_ones);
        exit when given >= most or passed >= 1000 or cardinality(free_ones) = cardinality(chosen.seqs);
    end loop;
    if given > 0 and (s.rate_count is not null or s.gate <> '') then
        perform {schema}.spend(now_at, s, given - tried, tried);
    end if;
end
$function$;

-- :name give_suspect
-- The first due suspect, alone: one of the levels from this one on.
create or replace function {schema}.give_suspect(
    s {schema}.queue, now_at bigint, who text, request text, of_queue text, of_kinds text[], ttl bigint,
    from_level integer
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    names text[];
    suspects integer[];
    room record;
    first record;
begin
    select array_agg(l.kind), array_agg(l.level) into names, suspects
    from {schema}.levels(of_queue, of_kinds, from_level) as l;
    if suspects is null then
        return;
    end if;
    if s.max_running is not null or s.rate_count is not null or s.gate <> '' then
        select * into room from {schema}.room(now_at, s, 1);
        if room.most < 1 or room.most_retries < 1 then
            return;
        end if;
    end if;
    for passed in 0 .. 1000 loop
        select p.seq into first
        from unnest(names, suspects) as l (kind, level)
        cross join lateral (
            select c.seq, c.due_at
            from {schema}.course c
            where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = l.kind and c.level = l.level
              and c.due_at <= now_at
            order by c.due_at, c.seq
            limit 1
            for no key update of c skip locked
        ) p
        order by p.due_at, p.seq
        limit 1;
        if not found then
            return;
        end if;
        exit when s.max_per_key is null
            or cardinality({schema}.set_aside(of_queue, s.max_per_key, array[first.seq])) > 0;
        if passed = 1000 then
            return;
        end if;
    end loop;
    return query
    select * from {schema}.give(
        now_at, who, request, of_queue, array[first.seq], ttl, 1::smallint, s.max_per_key is not null
    );
    if found and (s.rate_count is not null or s.gate <> '') then
        -- It was let in as a retry, and is paid as one even if it was never tried: its policy allows no crash at all.
        perform {schema}.spend(now_at, s, 0, 1);
    end if;
end
$function$;

-- :name give_one
-- The item with this id, if it is ready in this queue and has no hold: due or not, and beyond what the queue gives. As a
-- suspect, from this level on, it is given alone, and only to a worker that holds nothing.
create or replace function {schema}.give_one(
    s {schema}.queue, now_at bigint, who text, request text, holding bigint, of_id text, of_queue text, ttl bigint,
    from_level integer
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    one record;
    is_suspect boolean;
    is_retry boolean;
    said {schema}.given;
begin
    select c.seq, c.level into one
    from {schema}.course c
    where c.seq = (select i.seq from {schema}.item i where i.id = of_id)
      and c.state = 'ready' and c.hold = 0 and c.queue = of_queue
    for no key update of c;
    if not found then
        return;
    end if;
    is_suspect := one.level >= from_level;
    is_retry := is_suspect or one.level / 3 % 2 = 1;
    if is_suspect and holding > 0 then
        said.note := 1;
        return next said;
        return;
    end if;
    if s.max_per_key is not null
        and cardinality({schema}.set_aside(of_queue, s.max_per_key, array[one.seq])) = 0 then
        return;
    end if;
    return query
    select * from {schema}.give(
        now_at, who, request, of_queue, array[one.seq], ttl, case when is_suspect then 1 else 0 end::smallint,
        s.max_per_key is not null
    );
    if s.rate_count is not null or s.gate <> '' then
        perform {schema}.spend(
            now_at, s, case when is_retry then 0 else 1 end, case when is_retry then 1 else 0 end
        );
    end if;
end
$function$;

-- :name suspect_waits
-- Whether one is due that could be given to a worker that holds nothing else.
create or replace function {schema}.suspect_waits(
    s {schema}.queue, now_at bigint, of_queue text, of_kinds text[], from_level integer
) returns boolean
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    room record;
begin
    if s.max_running is not null or s.rate_count is not null or s.gate <> '' then
        select * into room from {schema}.room(now_at, s, 1);
        if room.most < 1 or room.most_retries < 1 then
            return false;
        end if;
    end if;
    return exists (
        select 1 from {schema}.levels(of_queue, of_kinds, from_level) as l
        cross join lateral (
            select 1 from {schema}.course c
            where c.state = 'ready' and c.hold = 0 and c.queue = of_queue and c.kind = l.kind and c.level = l.level
              and c.due_at <= now_at and (s.max_per_key is null or not exists (
                  select 1 from {schema}.slot o
                  where o.queue = of_queue and o.running >= s.max_per_key and o.key = (
                      select t.limit_key from {schema}.terms t where t.seq = case when c.ties & 16 <> 0 then c.seq end
                  )
                  offset 0
              ))
            offset 0
        ) c
    );
end
$function$;
