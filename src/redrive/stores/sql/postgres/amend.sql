-- amend: moves items nobody holds. The caller has checked each against core.acts.refusal in the same transaction.
-- Inputs: ids or numbers of items as arrays. Outputs: what amend and prune need to know of items.
-- Atomicity: one transaction with letters, counters, causes, the audit entry and the deeds. Whoever changes an item or
-- its letter holds the lock of its course. First the lines of the items are locked, and those that they are to join in
-- another queue; then their courses by number; and what is judged is read by a later statement: it sees what whoever held
-- the lock before has committed.
-- A letter is looked up by a range of one number, in its order: only the primary key serves that, while every index of
-- letters ends in the number and might be read from end to end for it.

-- :name lock_lines
select {schema}.lock_lines_into(%b::bigint[], %b);

-- :name lock_lines_named
select {schema}.lock_lines_into(array(select i.seq from {schema}.item i where i.id = any(%b::text[])), %b);

-- :name lock_lines_into
-- The lines of these items, and those of the same keys in the queue that they are to run in, if it is another one; null
-- for the queue from which each was replayed.
create or replace function {schema}.lock_lines_into(seqs bigint[], into_queue text) returns void
language plpgsql volatile parallel unsafe
as $function$
begin
    if into_queue = '' then
        perform {schema}.lock_lines(seqs);
        return;
    end if;
    perform 1
    from (
        select distinct q.name, t.order_key as key
        from unnest(seqs) as o (seq)
        join {schema}.terms t on t.seq = any (array[o.seq]) and t.order_key <> ''
        cross join lateral (
            values (t.queue), (into_queue), ((select r.queue from {schema}.recall r where r.seq = t.seq))
        ) as q (name)
        order by 1, 2
    ) o
    cross join lateral (
        select 1 from {schema}.line l where l.queue = o.name and l.key = o.key for no key update
    ) l;
end
$function$;

-- :name lock_named
select c.seq, n.id
from (select i.seq, i.id from {schema}.item i where i.id = any(%b::text[]) offset 0) n
join {schema}.course c on c.seq = any (array[n.seq])
order by n.seq
for update of c;

-- :name lock
select c.seq from {schema}.course c where c.seq = any(%b::bigint[]) order by c.seq for update;

-- :name states
select c.seq, c.queue, c.state,
       case when c.state = 'ready' then {schema}.bucket(c.seq, c.queue, c.hold, c.ties) else c.state end,
       l.disposition, l.cause, l.route, c.ties::bigint, c.deliveries, c.lease_until, c.worker
from {schema}.course c
left join lateral (
    select n.* from {schema}.letter n where n.seq >= c.seq and n.seq <= c.seq order by n.seq limit 1
) l on true
where c.seq = any(%b::bigint[]);

-- :name places
-- Of these those that match.
select c.seq, i.id, c.queue, c.state,
       case when c.state = 'ready' then {schema}.bucket(c.seq, c.queue, c.hold, c.ties) else c.state end,
       l.disposition, l.cause, l.route, c.ties::bigint, c.deliveries, c.lease_until, c.worker
from {schema}.course c
join {schema}.item i on i.seq = any (array[c.seq])
left join lateral (
    select n.* from {schema}.letter n where n.seq >= c.seq and n.seq <= c.seq order by n.seq limit 1
) l on true
{joins}
where c.seq = any(%b::bigint[]) and ({where})
order by c.seq;

-- :name counted
-- The first that match, and how many match in all. Letters may lead to them.
select c.seq, i.id, c.queue, c.state,
       case when c.state = 'ready' then {schema}.bucket(c.seq, c.queue, c.hold, c.ties) else c.state end,
       l.disposition, l.cause, l.route, c.ties::bigint, c.deliveries, c.lease_until, c.worker, count(*) over ()
from {schema}.course c
join {schema}.item i on i.seq = any (array[c.seq])
left join {schema}.letter l on l.seq = c.seq
{joins}
where ({where})
order by c.seq
limit %b::bigint;

-- :name done_before
-- Which of these items an earlier amend with this change and request id changed.
select d.seq from {schema}.deed d
where d.seq = any(%b::bigint[])
    and d.position = any(array(
        select j.position from {schema}.journal j where j.request_id = %b and j.change <> '' and j.change = %b
    ));

-- :name take_away
-- Leases of letters that ran out. The delivery counts on, so that whoever had it is refused.
update {schema}.course set deliveries = deliveries + 1, lease_until = null where seq = any(%b::bigint[]);

-- :name replay
with gone as (delete from {schema}.letter where seq = any(%b::bigint[]))
update {schema}.course
set state = 'ready', due_at = %b::bigint, renewed_at = %b::bigint, attempt = 0, errors = 0, crashes = 0,
    replays = replays + 1, level = 3 + priority, last_chance = %b, ended_at = null
where seq = any(%b::bigint[]);

-- :name reserved
-- Those of these letters that are reserved, and for which replay.
select o.seq, l.reserved
from unnest(%b::bigint[]) as o (seq)
cross join lateral (
    select n.* from {schema}.letter n where n.seq >= o.seq and n.seq <= o.seq order by n.seq limit 1
) l
where l.reserved <> '';

-- :name reserve
update {schema}.letter l set reserved = d.replay from (select %b::text as replay) d where l.seq = any(%b::bigint[]);

-- :name lay
-- The trash counts from when a letter came there; elsewhere its end is its death.
with laid as (
    update {schema}.letter l set disposition = d.name
    from (select %b::text as name) d
    where l.seq = any(%b::bigint[])
    returning l.seq, case d.name when 'trash' then %b::bigint else l.died_at end as ended_at
)
update {schema}.course c set ended_at = l.ended_at
from laid l where c.seq = any (array[l.seq]) and c.ended_at is distinct from l.ended_at;

-- :name move
-- To another queue, with all that says which one it is in. Under an order key their old places mean nothing there.
with moved as materialized (
    select o.seq, q.name, nextval('{schema}.item_seq') as place
    from unnest(%b::bigint[]) as o (seq) cross join (select %b::text as name) q
), items as (
    update {schema}.item i set queue = m.name from moved m where i.seq = any (array[m.seq])
), letters as (
    update {schema}.letter l set queue = (select m.name from moved m limit 1)
    where l.seq = any (array(select m.seq from moved m))
), bound as (
    update {schema}.terms t
    set queue = m.name, scope = case when t.scope = '' then '' else m.name end,
        place = case when t.order_key = '' then 0 else m.place end
    from moved m where t.seq = any (array[m.seq])
)
update {schema}.course c set queue = m.name from moved m where c.seq = any (array[m.seq]);

-- :name tags
select g.seq, g.tag from {schema}.tag g where g.seq = any(%b::bigint[]);

-- :name tag
-- Which of them have any afterwards is told by tie.
with gone as (
    delete from {schema}.tag g where g.seq = any(%b::bigint[]) and g.tag = any(%b::text[])
)
insert into {schema}.tag (tag, seq)
select n.tag, o.seq from unnest(%b::bigint[]) as o (seq) cross join unnest(%b::text[]) as n (tag)
order by n.tag, o.seq
on conflict (tag, seq) do nothing;

-- :name tie
update {schema}.course c set ties = c.ties # 128
where c.seq = any(%b::bigint[])
    and (c.ties & 128 <> 0) <> exists (select 1 from {schema}.tag g where g.seq = c.seq offset 0);

-- :name terms
select t.seq, t.body from {schema}.terms t where t.seq = any(%b::bigint[]);

-- :name set_policy
-- The terms with another policy, or nothing where they say nothing else.
with given as (
    insert into {schema}.terms as t (seq, queue, body)
    select o.seq, n.queue, nullif(o.body, '')
    from unnest(%b::bigint[], %b::bytea[]) as o (seq, body) join {schema}.course n on n.seq = any (array[o.seq])
    on conflict (seq) do update set body = excluded.body
    returning t.seq
)
update {schema}.course c set ties = c.ties | 64 from given g where c.seq = any (array[g.seq]);

-- :name run_now
-- Due now, and where they begin anew, as if they were never tried; their level follows from that.
update {schema}.course c
set due_at = o.now_at,
    renewed_at = case when o.reset then o.now_at else c.renewed_at end,
    attempt = case when o.reset then 0 else c.attempt end,
    errors = case when o.reset then 0 else c.errors end,
    crashes = case when o.reset then 0 else c.crashes end,
    last_chance = c.last_chance and not o.reset,
    level = case when o.reset then c.priority + case when c.replays > 0 then 3 else 0 end else c.level end
from (select %b::bigint as now_at, %b::boolean as reset) o
where c.seq = any(%b::bigint[]);

-- :name expire
with fallen as (
    update {schema}.course c set state = 'dead', ended_at = o.now_at, hold = 0, ties = c.ties & ~256
    from (select %b::bigint as now_at) o
    where c.seq = any(%b::bigint[])
    returning c.seq, c.queue, c.ended_at
)
insert into {schema}.letter (
    seq, queue, died_at, disposition, reason, cause, error, error_short, category, rule, failure
)
select f.seq, f.queue, f.ended_at, 'open', %b, %b, %b, %b, %b, %b, %b from fallen f;

-- :name cancel
update {schema}.course set state = 'cancelled', ended_at = %b::bigint, hold = 0, ties = ties & ~256
where seq = any(%b::bigint[]);

-- :name park
-- Whatever they waited for is found again when they are unparked.
with named as (
    insert into {schema}.terms as t (seq, queue, parked)
    select n.seq, n.queue, %b from {schema}.course n where n.seq = any(%b::bigint[])
    on conflict (seq) do update set parked = excluded.parked
    returning t.seq
)
update {schema}.course c set hold = 4, ties = c.ties | 320 from named n where c.seq = any (array[n.seq]);

-- :name pass_on
-- Of these parked items: who was set aside under a limit key no longer is, and what others were promised goes to the next.
select {schema}.give_back(
    %b::bigint[], array_fill(4::smallint, array[cardinality(%b::bigint[])]), '{}'::bigint[], %b::bigint[]
);

-- :name unpark_items
-- With the hold that each has now, and counted so. Gives the queues.
with freed as (
    update {schema}.course c
    set ties = c.ties & ~256,
        hold = case when c.ties & 4 <> 0
                         and exists (select 1 from {schema}.edge e where e.waiting = c.seq offset 0) then 1
                    when c.ties & 1 <> 0 and exists (
                        select 1 from {schema}.line l
                        where l.queue = c.queue and l.key = (select t.order_key from {schema}.terms t where t.seq = c.seq)
                          and l.head is distinct from c.seq
                        offset 0
                    ) then 2 else 0 end
    where c.seq = any(%b::bigint[])
    returning c.seq, c.queue, c.hold, c.ties
), counted as (
    insert into {schema}.counter (queue, ready, held, parked)
    select b.queue, count(*) filter (where b.kind = 'ready'), count(*) filter (where b.kind = 'held'),
           -count(*) filter (where b.kind <> 'parked')
    from (select f.queue, {schema}.bucket(f.seq, f.queue, f.hold, f.ties) as kind from freed f) b
    group by b.queue
)
select distinct f.queue from freed f;

-- :name keep_revisions
-- The payloads as they are, damaged or not.
insert into {schema}.revision (seq, number, at, actor, reason, body, packing, crc)
select i.seq, o.number, a.at, a.actor, a.reason, i.body, i.packing, i.crc
from unnest(%b::bigint[], %b::integer[]) as o (seq, number)
join {schema}.item i on i.seq = any (array[o.seq])
cross join (select %b::bigint as at, %b::text as actor, %b::text as reason) a;

-- :name edit
with payload as (select %b::bytea as body, %b::smallint as packing, %b::bigint as crc),
    marked as (update {schema}.course c set ties = c.ties | 512 where c.seq = any(%b::bigint[]))
update {schema}.item i set body = p.body, packing = p.packing, crc = p.crc
from payload p where i.seq = any(%b::bigint[]);

-- :name untie
select {schema}.untie(
    %b::bigint, %b::bigint[], array_fill(%b::smallint, array[cardinality(%b::bigint[])]), %b::bigint[], false,
    %b::integer, true
);

-- :name ask
-- Those that run are asked to be cancelled.
with asked as (
    insert into {schema}.terms as t (seq, queue, cancel)
    select n.seq, n.queue, %b from {schema}.course n where n.seq = any(%b::bigint[])
    on conflict (seq) do update set cancel = excluded.cancel
    returning t.seq
)
update {schema}.course c set ties = c.ties | 96 from asked a where c.seq = any (array[a.seq]);

-- :name retake
-- Dedupe keys of letters that shall run again, in their order, and where. Gives those that others hold, and by whom.
select k.seq, k.holder
from (
    select array_agg(o.seq order by o.nth) as seqs, array_agg(i.id order by o.nth) as ids,
           array_agg(case when t.scope = '' then '' else coalesce(q.other, t.scope) end order by o.nth) as scopes,
           array_agg(t.dedupe_key order by o.nth) as keys, array_agg(t.until order by o.nth) as untils
    from unnest(%b::bigint[]) with ordinality as o (seq, nth)
    join {schema}.terms t on t.seq = any (array[o.seq]) and t.dedupe_key <> ''
    join {schema}.item i on i.seq = any (array[o.seq])
    cross join (select nullif(%b::text, '') as other) q
) a
cross join lateral {schema}.take_keys(%b::bigint, a.seqs, a.ids, a.scopes, a.keys, a.untils) k
where a.seqs is not null;

-- :name blocking
-- Those of these letters that are the head of their line.
select t.seq from {schema}.terms t
join {schema}.line l on l.queue = any (array[t.queue]) and l.key = t.order_key and l.head = t.seq
where t.seq = any(%b::bigint[]);

-- :name keeping_back
-- Those of these letters behind which others wait.
select t.seq from {schema}.terms t
join {schema}.line l on l.queue = any (array[t.queue]) and l.key = t.order_key and l.head = t.seq
where t.seq = any(%b::bigint[]) and l.waiting > 0;

-- :name lock_awaited
-- What these letters wait for, so that it stays what it is judged to be.
select c.seq from {schema}.course c
where c.seq = any(array(
    select i.seq from {schema}.item i
    where i.id = any(array(select unnest(t.after) from {schema}.terms t where t.seq = any(%b::bigint[])))
))
order by c.seq
for no key update;

-- :name hopeless
-- Those of these letters that wait for what will never be done, and the first of it.
select distinct on (t.seq) t.seq, o.id, i.seq is null and s.id is null as unknown
from {schema}.terms t
cross join lateral unnest(t.after) with ordinality as o (id, nth)
left join {schema}.item i on i.id = any (array[o.id])
left join {schema}.course c on c.seq = any (array[i.seq])
left join {schema}.tombstone s on s.id = any (array[o.id])
where t.seq = any(%b::bigint[]) and coalesce(c.state = 'cancelled', s.state <> 'done', true)
order by t.seq, o.nth;

-- :name call_rejoin
select {schema}.rejoin(%b::bigint[], %b::bigint[], %b);

-- :name call_let_go
select {schema}.let_go(%b::bigint[], %b);

-- :name rejoin
-- Letters that are ready again, in this order: back to their places in lines, or to the tail, and waiting for whatever
-- of `after` is not done, unless forced. keyless: those that run without their dedupe key. Counts them where they are
-- then. What others were ever put to wait for keeps its place: behind those who wait for it, all would wait in a ring.
create or replace function {schema}.rejoin(seqs bigint[], keyless bigint[], forced boolean) returns void
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    r record;
    l {schema}.line;
    at_place bigint;
    new_heads bigint[] := '{}';
begin
    update {schema}.course c
    set ties = case when t.dedupe_key = '' or c.seq = any (keyless) then c.ties & ~2 else c.ties | 2 end
    from {schema}.terms t where t.seq = any (array[c.seq]) and c.seq = any (seqs);
    -- First, as long as all that are counted in these lines are those who were there before.
    perform {schema}.unpark(n)
    from unnest(seqs) as o (seq)
    join {schema}.terms t on t.seq = any (array[o.seq]) and t.order_key <> ''
    join {schema}.line n on n.queue = any (array[t.queue]) and n.key = t.order_key
    where n.head = o.seq;
    for r in
        select o.seq, i.id, t.queue, t.order_key, t.place, t.after, c.ties
        from unnest(seqs) with ordinality as o (seq, nth)
        join {schema}.item i on i.seq = any (array[o.seq])
        join {schema}.course c on c.seq = any (array[o.seq])
        join {schema}.terms t on t.seq = any (array[o.seq])
        order by o.nth
    loop
        if r.order_key <> '' then
            insert into {schema}.line as n (queue, key) values (r.queue, r.order_key)
            on conflict (queue, key) do update set gap = case when n.gap = r.id then '' else n.gap end
            returning n.* into l;
            if l.head is distinct from r.seq then
                at_place := case when r.ties & 8 <> 0 then r.place else nextval('{schema}.item_seq') end;
                update {schema}.terms t
                set place = at_place, gap = case when l.head is null and l.gap <> '' then l.gap else t.gap end
                where t.seq = r.seq;
                if l.head is null then
                    update {schema}.line n set head = r.seq where n.queue = l.queue and n.key = l.key;
                else
                    insert into {schema}.follower (queue, key, place, seq) values (l.queue, l.key, at_place, r.seq);
                    update {schema}.line n set waiting = n.waiting + 1 where n.queue = l.queue and n.key = l.key;
                end if;
            end if;
        end if;
        if cardinality(r.after) > 0 and not forced then
            perform 1 from {schema}.course c
            where c.seq = any (array(select i.seq from {schema}.item i where i.id = any (r.after)))
            order by c.seq for no key update;
            perform {schema}.await_all(
                array[r.seq], array_fill(1, array[cardinality(r.after)]), r.after, '{}'
            );
            update {schema}.course c set hold = 1
            where c.seq = r.seq and exists (select 1 from {schema}.edge e where e.waiting = r.seq);
        end if;
        if r.order_key <> '' then
            new_heads := new_heads || {schema}.give_way(r.queue, r.order_key);
        end if;
    end loop;
    update {schema}.course c
    set hold = case when exists (select 1 from {schema}.edge e where e.waiting = c.seq offset 0) then 1
                    when c.ties & 1 <> 0 and exists (
                        select 1 from {schema}.line n
                        where n.queue = c.queue and n.key = (select t.order_key from {schema}.terms t where t.seq = c.seq)
                          and n.head is distinct from c.seq
                        offset 0
                    ) then 2 else 0 end
    where c.seq = any (seqs);
    insert into {schema}.counter (queue, ready, held, parked)
    select b.queue, count(*) filter (where b.kind = 'ready'), count(*) filter (where b.kind = 'held'),
           count(*) filter (where b.kind = 'parked')
    from (
        select c.queue, {schema}.bucket(c.seq, c.queue, c.hold, c.ties) as kind
        from {schema}.course c where c.seq = any (seqs)
    ) b
    group by b.queue;
    perform {schema}.rehold(array(select unnest(new_heads) except select unnest(seqs)));
end
$function$;

-- :name give_way
-- A head that waits for others lets go first who has a place before it: it may be what it waits for. Gives that one,
-- the new head. The line is locked; and the old head, so that what it waits for does not free it meanwhile.
create or replace function {schema}.give_way(of_queue text, of_key text) returns bigint
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    l {schema}.line;
    its_place bigint;
    upcoming record;
begin
    select n.* into l from {schema}.line n where n.queue = of_queue and n.key = of_key;
    perform 1 from {schema}.course c where c.seq = l.head for no key update;
    select t.place into its_place from {schema}.terms t
    where t.seq = l.head and (
        select c.state = 'ready'
               and (c.hold = 1 or c.hold = 4 and exists (select 1 from {schema}.edge e where e.waiting = c.seq))
        from {schema}.course c where c.seq = l.head
    );
    select f.place, f.seq into upcoming from {schema}.follower f
    where f.queue = of_queue and f.key = of_key and f.place < its_place order by f.place limit 1;
    if not found then
        return null;
    end if;
    delete from {schema}.follower f where f.queue = of_queue and f.key = of_key and f.place = upcoming.place;
    insert into {schema}.follower (queue, key, place, seq) values (of_queue, of_key, its_place, l.head);
    update {schema}.line n set head = upcoming.seq where n.queue = of_queue and n.key = of_key;
    update {schema}.terms t set gap = l.gap where t.seq = upcoming.seq and l.gap <> '';
    return upcoming.seq;
end
$function$;

-- :name unpark
-- Its dead head is none any more: the line flows, and what was parked waits as before.
create or replace function {schema}.unpark(of_line {schema}.line) returns void
language plpgsql volatile parallel unsafe
as $function$
begin
    update {schema}.line n set status = 0 where n.queue = of_line.queue and n.key = of_line.key;
    if of_line.status = 2 and of_line.waiting > 0 then
        insert into {schema}.counter (queue, held, parked)
        select of_line.queue, b.n, -b.n
        from (select of_line.waiting - {schema}.parked_behind(of_line.queue, of_line.key) as n) b;
    end if;
end
$function$;

-- :name let_go
-- Letters that let go on what waits behind them, with a gap or without; or that are no gap any more. Their lines are
-- locked. Gives the queues in which something became ready.
create or replace function {schema}.let_go(seqs bigint[], leaves_gap boolean) returns text[]
language plpgsql volatile parallel unsafe
as $function$
#variable_conflict use_column
declare
    r record;
    l {schema}.line;
    upcoming record;
    new_gap text;
    freed bigint[] := '{}';
begin
    for r in
        select o.seq, i.id, n.queue, n.key
        from unnest(seqs) with ordinality as o (seq, nth)
        join {schema}.item i on i.seq = any (array[o.seq])
        join {schema}.terms t on t.seq = any (array[o.seq]) and t.order_key <> ''
        join {schema}.line n on n.queue = any (array[t.queue]) and n.key = t.order_key
        where n.head = o.seq or n.gap = i.id
        order by o.nth
    loop
        -- As it is now: another of these letters may have been its head, or its gap.
        select n.* into l from {schema}.line n where n.queue = r.queue and n.key = r.key;
        if l.head is distinct from r.seq then
            update {schema}.line n set gap = '' where n.queue = r.queue and n.key = r.key and n.gap = r.id;
        else
            perform {schema}.unpark(l);
            new_gap := case when leaves_gap then r.id when l.gap = r.id then '' else l.gap end;
            select f.place, f.seq into upcoming from {schema}.follower f
            where f.queue = r.queue and f.key = r.key order by f.place limit 1;
            delete from {schema}.follower f
            where f.queue = r.queue and f.key = r.key and f.place = upcoming.place;
            update {schema}.line n
            set head = upcoming.seq, gap = new_gap,
                waiting = n.waiting - case when upcoming.seq is null then 0 else 1 end
            where n.queue = r.queue and n.key = r.key;
            update {schema}.terms t set gap = new_gap where t.seq = upcoming.seq and new_gap <> '';
            freed := freed || case when upcoming.seq is null then '{}' else array[upcoming.seq] end;
        end if;
        delete from {schema}.line n
        where n.queue = r.queue and n.key = r.key and n.head is null and n.gap = '';
    end loop;
    return {schema}.rehold(freed);
end
$function$;

-- :name record_deeds
-- Also that those which were letters, and those which are now, have changed.
with recorded as (
    insert into {schema}.deed (seq, position) select seq, %b::bigint from unnest(%b::bigint[]) as seq
)
insert into {schema}.unnumbered (seq)
select o.seq
from (
    select unnest(%b::bigint[]) as seq union select l.seq from {schema}.letter l where l.seq = any(%b::bigint[])
) o
order by o.seq;
