-- Families of queues (core.families): settings and counters of members, and which members a lease looks at.
-- Inputs: see each function. Outputs: likewise.
-- Atomicity: within the statement of put, settle, lease and the others. Rows of `agenda` are inserted by every write that
--   may make something of a member leasable, in its own transaction, and never updated. A lease locks the rows it sees,
--   looks at their members with later statements, and deletes those rows alone: a row of a write that it cannot see yet
--   stays. Leases wait for leases here; puts and settles wait for nobody but the declaration of the family itself.

-- :name families_of
-- The families that these queues would belong to.
create or replace function {schema}.families_of(names text[]) returns text[]
language sql immutable parallel safe
as $function$
    select coalesce(array_agg(distinct split_part(n.name, ':', 1) || ':*'), '{}') from unnest(names) as n (name)
    where strpos(n.name, ':') > 1 and right(n.name, 2) <> ':*'
$function$;

-- :name settings_for
-- The settings that hold for a queue: those of a member with the defaults of its family. bounded: a member of a family
-- that is paused or has a max_running has one, too, so that a lease asks `room`, which counts the whole.
create or replace function {schema}.settings_for(of_queue text, bounded boolean) returns {schema}.queue
language plpgsql stable parallel safe
as $function$
#variable_conflict use_column
declare
    s {schema}.queue;
    f {schema}.queue;
begin
    select * into s from {schema}.queue q where q.name = of_queue;
    if strpos(of_queue, ':') < 2 or right(of_queue, 2) = ':*' then
        return s;
    end if;
    select * into f from {schema}.queue q where q.name = split_part(of_queue, ':', 1) || ':*';
    if f.name is null then
        return s;
    end if;
    s.name := of_queue;
    s.paused := coalesce(s.paused, false);
    s.max_per_key := coalesce(s.max_per_key, f.max_per_key);
    if s.rate_count is null then
        s.rate_count := f.rate_count;
        s.rate_per := f.rate_per;
        s.rate_burst := f.rate_burst;
    end if;
    s.order_mode := coalesce(s.order_mode, f.order_mode);
    s.policy := coalesce(nullif(s.policy, ''), f.policy);
    s.gate := coalesce(nullif(s.gate, ''), case f.gate when '*' then of_queue else f.gate end);
    s.keep := coalesce(s.keep, f.keep);
    s.keep_results := coalesce(s.keep_results, f.keep_results);
    s.retry_share := f.retry_share;
    s.keep_trash := coalesce(s.keep_trash, f.keep_trash);
    if bounded and (f.paused or f.max_running is not null) then
        s.max_running := coalesce(s.max_running, 2147483647);
    end if;
    return s;
end
$function$;

-- :name running_of
-- How many run of a queue, or of all members of a family.
create or replace function {schema}.running_of(of_queue text) returns bigint
language sql stable parallel safe
as $function$
    select coalesce((select sum(k.leased) from {schema}.counter k where k.queue = of_queue), 0)::bigint
         + case when strpos(of_queue, ':') > 1
                then coalesce((select sum(k.leased) from {schema}.member_counter k where k.queue = of_queue), 0)::bigint
                else 0 end
$function$;

-- :name fill_of
-- How many wait or run: what counts against a capacity.
create or replace function {schema}.fill_of(of_queue text) returns bigint
language sql stable parallel safe
as $function$
    select coalesce((
               select sum(k.ready + k.held + k.parked + k.leased) from {schema}.counter k where k.queue = of_queue
           ), 0)::bigint
         + case when strpos(of_queue, ':') > 1 then coalesce((
               select sum(k.ready + k.held + k.parked + k.leased) from {schema}.member_counter k
               where k.queue = of_queue
           ), 0)::bigint else 0 end
$function$;

-- :name guard
-- Until the end of the transaction no family of these names is declared.
create or replace function {schema}.guard(of_family text) returns void
language sql volatile parallel unsafe
as $function$
    select pg_advisory_xact_lock_shared(hashtextextended(of_family, hashtext('{schema}.family')))
$function$;

-- :name lower
-- Leases shall look at those of these queues that are members of a declared family.
create or replace function {schema}.lower(names text[]) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    perform {schema}.guard(f.name) from unnest({schema}.families_of(names)) as f (name);
    insert into {schema}.agenda (family, queue, next_at)
    select q.name, n.name, 0
    from (select distinct o.name from unnest(names) as o (name)) n
    join {schema}.queue q on q.name = split_part(n.name, ':', 1) || ':*'
    where strpos(n.name, ':') > 1 and right(n.name, 2) <> ':*';
end
$function$;

-- :name lower_all
-- At all members of a family that have work: its settings changed, or the gate before all of them. New rows, because a
-- lease that looked before the change may put another time into the place of those that are there.
create or replace function {schema}.lower_all(of_family text) returns void
language sql volatile parallel unsafe
as $function$
    insert into {schema}.agenda (family, queue, next_at)
    select distinct of_family, a.queue, 0::bigint from {schema}.agenda a where a.family = of_family
$function$;

-- :name count_member
-- The counters of a member lie apart, those of its family are counted as well, and a lease shall look at it if anything
-- of it may be leased now. For each new row of `counter` whose queue has a name like that of a member.
create or replace function {schema}.count_member() returns trigger
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    of_family text := split_part(new.queue, ':', 1) || ':*';
begin
    perform {schema}.guard(of_family);
    if not exists (select 1 from {schema}.queue q where q.name = of_family) then
        return new;
    end if;
    insert into {schema}.member_counter values (new.*);
    if random() < 0.1 then
        insert into {schema}.member_moved (queue) values (new.queue);
    end if;
    if new.ready > 0 or (new.leased < 0 and exists (
        select 1 from {schema}.queue q where q.name = new.queue and q.max_running is not null
    )) then
        insert into {schema}.agenda (family, queue, next_at) values (of_family, new.queue, 0);
    end if;
    new.queue := of_family;
    return new;
end
$function$;

-- :name untrigger
drop trigger if exists count_member on {schema}.counter;

-- :name trigger
create trigger count_member before insert on {schema}.counter for each row
when (strpos(new.queue, ':') > 1 and right(new.queue, 2) <> ':*')
execute function {schema}.count_member();

-- :name declare
-- A family, with the queues that have such a name. Waits for all that may count or put there without knowing of it.
create or replace function {schema}.declare_family(of_family text) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
begin
    if exists (select 1 from {schema}.queue q where q.name = of_family) then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(of_family, hashtext('{schema}.family')));
    insert into {schema}.queue (name) values (of_family) on conflict (name) do nothing;
    -- Inserted again, they are counted as those of members, and lowered if anything is ready.
    with gone as (
        delete from {schema}.counter k
        where k.queue > left(of_family, -1) and k.queue < left(of_family, -2) || ';' and k.queue <> of_family
        returning k.*
    )
    insert into {schema}.counter (queue, ready, leased, done, open, archived, trash, cancelled, held, parked)
    select g.queue, sum(g.ready), sum(g.leased), sum(g.done), sum(g.open), sum(g.archived), sum(g.trash),
           sum(g.cancelled), sum(g.held), sum(g.parked)
    from gone g group by g.queue;
end
$function$;

-- :name turns
-- The rows of the agenda of the members that a lease looks at now, locked: some of those whose time has come, then those
-- to look at now in their order. Of a member with many rows as many as are met. is_full: there may be others.
create or replace function {schema}.turns(
    now_at bigint, of_family text, out members text[], out places bigint[], out owners text[],
    out is_full boolean
)
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    met bigint;
    room integer;
begin
    members := '{}';
    places := '{}';
    owners := '{}';
    is_full := true;
    for round in 1 .. 6 loop
        room := 64 - cardinality(members);
        exit when room <= 0;
        with late as (
            select a.turn, a.queue, a.next_at from {schema}.agenda a
            where a.family = of_family and a.next_at > 0 and a.next_at <= now_at and a.queue <> all (members)
            order by a.next_at, a.turn limit (room + 1) / 2 for update skip locked
        ), soon as (
            select a.turn, a.queue, a.next_at from {schema}.agenda a
            where a.family = of_family and a.next_at = 0 and a.queue <> all (members)
            order by a.next_at, a.turn limit room / 2 for update skip locked
        ), found as (
            select * from late union all select * from soon
        )
        select count(*),
               places || coalesce(array_agg(f.turn), '{}'), owners || coalesce(array_agg(f.queue), '{}'),
               members || coalesce((
                   select array_agg(o.queue order by o.is_soon, o.place) from (
                       select n.queue, min(case when n.next_at = 0 then 1 else 0 end) as is_soon, min(n.turn) as place
                       from found n group by n.queue
                   ) o
               ), '{}')
        into met, places, owners, members from found f;
        if met = 0 then
            is_full := false;
            exit;
        end if;
        -- What else there is of the same members.
        with more as (
            select a.turn, a.queue from {schema}.agenda a
            where a.queue = any (members) and a.next_at <= now_at and a.turn <> all (places)
            limit 1000 for update skip locked
        )
        select places || coalesce(array_agg(m.turn), '{}'), owners || coalesce(array_agg(m.queue), '{}')
        into places, owners from more m;
    end loop;
end
$function$;

-- :name closed
-- Whether a family gives nothing now, whatever its members have. Counters are read only where they matter: there may be
-- many rows of them.
create or replace function {schema}.closed(of_family text) returns boolean
language sql stable parallel safe
as $function$
    select exists (
        select 1 from {schema}.queue f
        where f.name = of_family and case
            when f.paused then true
            when f.max_running is null then false
            else f.max_running <= {schema}.running_of(f.name)
        end
    )
$function$;

-- :name look_again
-- When a lease shall look at a member again, after it looked: now is 0; null: not before a write that lowers it. The
-- retry budget of a gate that others share may be filled by them.
create or replace function {schema}.look_again(now_at bigint, of_queue text) returns bigint
language plpgsql stable parallel safe
as $function$
#variable_conflict use_column
declare
    opens bigint := {schema}.opens_at(now_at, of_queue, null);
    s {schema}.queue;
begin
    if opens is null or opens <= now_at then
        return case when opens is null then null else 0 end;
    end if;
    s := {schema}.settings_for(of_queue, false);
    if s.gate <> '' and s.gate <> of_queue and exists (
        select 1 from {schema}.gate g where g.name = s.gate and g.interval is null and g.share is not null
    ) then
        return least(opens, now_at + 1000);
    end if;
    return opens;
end
$function$;

-- :name next_look
-- When something of a queue or family may be leased; null if nothing will be by itself. Of the members whose turn it is,
-- only items of these kinds count.
create or replace function {schema}.next_look(now_at bigint, of_queue text, of_kinds text[]) returns bigint
language plpgsql stable parallel safe
as $function$
#variable_conflict use_column
begin
    if right(of_queue, 2) = ':*' then
        if {schema}.closed(of_queue) then
            return null;
        end if;
        if of_kinds is null then
            return (select a.next_at from {schema}.agenda a where a.family = of_queue order by a.next_at limit 1);
        end if;
        return least(
            (
                select min({schema}.opens_at(now_at, m.queue, of_kinds)) from (
                    select distinct a.queue from {schema}.agenda a where a.family = of_queue and a.next_at <= now_at
                ) m
            ),
            (
                select a.next_at from {schema}.agenda a
                where a.family = of_queue and a.next_at > now_at order by a.next_at limit 1
            )
        );
    end if;
    if strpos(of_queue, ':') > 1 and {schema}.closed(split_part(of_queue, ':', 1) || ':*') then
        return null;
    end if;
    return {schema}.opens_at(now_at, of_queue, of_kinds);
end
$function$;

-- :name lease
-- As lease, where families are among the wants: each want of a family is served as those of the members whose turn it
-- is. First whoever is suspect, then in rounds: an equal portion for each, and what is left for those that have more.
create or replace function {schema}.lease_families(
    now_at bigint, who text, request text, holding bigint, queues text[], limits integer[], ttls bigint[],
    lines integer[], floor_dues bigint[], floor_seqs bigint[], retries integer[], turns bigint[],
    settings {schema}.queue[], shares integer[], kind_lists text[]
) returns setof {schema}.given
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    found_turns record;
    members text[] := '{}';
    wants integer[] := '{}';
    places bigint[] := '{}';
    owners text[] := '{}';
    visited text[] := '{}';
    suspect_waits boolean := false;
    is_full boolean := false;
    s {schema}.queue;
    f {schema}.queue;
    g {schema}.given;
    left_over bigint;
    share bigint;
    asked bigint;
    given_now bigint;
    given_of bigint;
    tried bigint;
    today text[];
    have_more text[];
    member text;
begin
    for want in 1 .. cardinality(queues) loop
        if right(queues[want], 2) <> ':*' then
            members := members || queues[want];
            wants := wants || want;
            continue;
        end if;
        if limits[want] <= 0 or {schema}.closed(queues[want]) then
            continue;
        end if;
        found_turns := {schema}.turns(now_at, queues[want]);
        if cardinality(found_turns.members) = 0 then
            -- Another lease may have all of them in its hands.
            perform 1 from {schema}.agenda a
            where a.family = queues[want] and a.next_at <= now_at order by a.next_at, a.turn limit 1 for update;
            found_turns := {schema}.turns(now_at, queues[want]);
        end if;
        members := members || found_turns.members;
        wants := wants || array_fill(want, array[cardinality(found_turns.members)]);
        places := places || found_turns.places;
        owners := owners || found_turns.owners;
        is_full := is_full or found_turns.is_full;
    end loop;
    settings := settings || {schema}.doors(members);
    for nth in 1 .. cardinality(members) loop
        s := null;
        select q.* into s from unnest(settings) as q where q.name = members[nth];
        if suspect_waits or limits[wants[nth]] <= 0
            or exists (select 1 from {schema}.queue q where q.name = members[nth] and q.paused)
            or not (lines[wants[nth]] <= 0 or exists (
                select 1 from {schema}.course c
                where c.state = 'ready' and c.hold = 0 and c.queue = members[nth] and (c.kind, c.level) > ('', 0)
            )) then
            continue;
        end if;
        if holding <= 0 then
            return query
            select * from {schema}.give_suspect(
                s, now_at, who, request, members[nth], {schema}.kinds_in(kind_lists[wants[nth]]), ttls[wants[nth]],
                greatest(lines[wants[nth]], 0) * 6
            );
            if found then
                perform {schema}.looked_at(now_at, array[members[nth]], places, owners);
                return;
            end if;
        else
            suspect_waits := {schema}.suspect_waits(
                s, now_at, members[nth], {schema}.kinds_in(kind_lists[wants[nth]]), greatest(lines[wants[nth]], 0) * 6
            );
        end if;
    end loop;
    for want in 1 .. cardinality(queues) loop
        left_over := limits[want];
        tried := 0;
        given_now := 0;
        today := array(
            select o.name from unnest(members, wants) with ordinality as o (name, of_want, nth)
            where o.of_want = want order by o.nth
        );
        if right(queues[want], 2) = ':*' then
            f := null;
            select q.* into f from {schema}.queue q where q.name = queues[want];
            if f.max_running is not null then
                left_over := least(left_over, f.max_running - {schema}.running_of(f.name));
            end if;
        end if;
        while left_over > 0 and cardinality(today) > 0 loop
            share := (left_over + cardinality(today) - 1) / cardinality(today);
            have_more := '{}';
            foreach member in array today loop
                exit when left_over <= 0;
                asked := least(share, left_over);
                given_of := 0;
                for g in
                    select * from {schema}.lease(
                        now_at, who, request, 1::bigint, array[member], array[asked::integer], ttls[want:want],
                        lines[want:want], array[-1::bigint], array[0::bigint],
                        array[case when retries[want] < 0 then -1 else greatest(0, retries[want] - tried) end::integer],
                        array[turns[want] + given_now], settings, shares[want:want], null, kind_lists[want:want], true
                    ) as l where l.note = 0
                loop
                    given_of := given_of + 1;
                    tried := tried + case when g.errors + g.crashes + g.replays > 0 then 1 else 0 end;
                    return next g;
                end loop;
                left_over := left_over - given_of;
                given_now := given_now + given_of;
                if right(queues[want], 2) = ':*' then
                    visited := visited || member;
                    if given_of = asked then
                        have_more := have_more || member;
                    end if;
                end if;
            end loop;
            today := have_more;
        end loop;
    end loop;
    if {schema}.looked_at(now_at, visited, places, owners) and is_full then
        g := null;
        g.note := 6;
        return next g;
    end if;
    if suspect_waits then
        g := null;
        g.note := 1;
        return next g;
    end if;
end
$function$;

-- :name looked_at
-- After a lease looked at these members: the rows it saw go, and each that has something to give, now or later, has a new
-- one, behind all others. Whether one of them has nothing to give now.
create or replace function {schema}.looked_at(
    now_at bigint, visited text[], places bigint[], owners text[]
) returns boolean
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    put_off boolean;
begin
    delete from {schema}.agenda a
    using unnest(places, owners) as o (turn, queue)
    where a.queue = o.queue and a.turn = o.turn and o.queue = any (visited);
    with looked as (
        select v.name, v.nth, {schema}.look_again(now_at, v.name) as next_at
        from (
            select o.name, max(o.nth) as nth from unnest(visited) with ordinality as o (name, nth)
            where strpos(o.name, ':') > 1 group by o.name
        ) v
    ), again as (
        insert into {schema}.agenda (family, queue, next_at)
        select split_part(l.name, ':', 1) || ':*', l.name, l.next_at from looked l
        where l.next_at is not null order by l.nth
    )
    select coalesce(bool_or(l.next_at is distinct from 0), false) into put_off from looked l;
    return put_off;
end
$function$;

-- :name call_lower
select {schema}.lower(%b::text[]);

-- :name call_lower_all
select {schema}.lower_all(%b);

-- :name call_declare
select {schema}.declare_family(%b);

-- :name free_asides
select {schema}.free_aside(o.queue)
from (select distinct a.queue from {schema}.aside a where a.queue > %b and a.queue < %b) o;
