-- check and repair: the truths that hold in every committed state.
-- Inputs: for rows, a window of numbers: more than the first and up to the second.
-- Outputs: names of what breaks the truth: the item's id, or #number where there is no item.
-- Atomicity: each window is one statement and so one picture; nothing is locked, and no picture is kept for long. What
-- is kept beside the rows is counted in one statement. The repair adds what is missing, so it needs no lock either, but
-- for items whose mark of having tags is wrong.

-- :name window
-- How far the next so many rows reach.
select max(seq), count(*)
from (select seq from {schema}.{table} where seq > %b::bigint order by seq limit %b::bigint) w;

-- :name window_of_bodies
-- The same, but no more rows than so many bytes, and at least one.
select max(seq), count(*)
from (
    select seq, sum(size) over (order by seq rows unbounded preceding) - size as before
    from (
        select seq, octet_length({body}) as size from {schema}.{table}
        where seq > %b::bigint order by seq limit %b::bigint
    ) sizes
) w
where before < %b::bigint;

-- :name shape
-- Tables and indexes with their columns, without the indexes that were not finished and serve nobody.
select 'table', t.relname::text, string_agg(a.attname, ', ' order by a.attnum)
from pg_class t join pg_attribute a on a.attrelid = t.oid
where t.relnamespace = to_regnamespace(%b) and t.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
group by t.relname
union all
select 'index', n.relname::text, string_agg(a.attname, ', ' order by a.attnum)
from pg_class n join pg_index x on x.indexrelid = n.oid join pg_attribute a on a.attrelid = n.oid
where n.relnamespace = to_regnamespace(%b) and n.relkind in ('i', 'I') and x.indisvalid and x.indisready
group by n.relname;

-- --- rows: the name of what breaks a truth, and for each truth in order whether it breaks that ---
-- The window is said of every table, so that each is read once and in order. What is found comes in the order of put:
-- the first examples are told.

-- :name item
select i.id, c.seq is null, t.id is not null
from {schema}.item i
left join {schema}.course c on c.seq = i.seq and c.seq > %b::bigint and c.seq <= %b::bigint
left join {schema}.tombstone t on t.id = i.id
where i.seq > %b::bigint and i.seq <= %b::bigint and (c.seq is null or t.id is not null)
order by i.seq;

-- :name course
select name, misfit, unknown, lease, ending, letter, held, untold, waits, lined, levelled, labelled
from (
    select c.seq, coalesce(i.id, '#' || c.seq) as name,
           i.seq is null or i.queue <> c.queue as misfit,
           c.state not in ('ready', 'leased', 'done', 'dead', 'cancelled') as unknown,
           c.state <> 'dead' and (c.state = 'leased') <> (c.lease_until is not null)
               or c.lease_until is not null and (c.worker is null or c.leased_at is null) as lease,
           (c.state in ('done', 'dead', 'cancelled')) <> (c.ended_at is not null) as ending,
           c.state = 'dead' and l.seq is null as letter,
           c.hold <> 0 and c.state <> 'ready' or (c.hold = 4) <> (c.ties & 256 <> 0)
               or c.hold = 4 and coalesce(t.parked, '') = '' as held,
           (c.ties & 64 <> 0) <> (t.seq is not null) or coalesce(t.queue <> c.queue, false) as untold,
           c.hold <> 4 and (c.hold = 1) <> (
               c.ties & 4 <> 0 and exists (select 1 from {schema}.edge e where e.waiting = c.seq)
           ) as waits,
           c.ties & 1 <> 0 and c.state in ('ready', 'leased') and not exists (
               select 1 from {schema}.line n where n.queue = c.queue and n.key = t.order_key and n.head = c.seq
           ) and not exists (
               select 1 from {schema}.follower f
               where f.queue = c.queue and f.key = t.order_key and f.place = t.place and f.seq = c.seq
           ) as lined,
           c.level <> c.crashes * 6 + case when c.errors + c.crashes + c.replays > 0 then 3 else 0 end + c.priority
               as levelled,
           (c.ties & 128 <> 0) <> (g.seq is not null) as labelled
    from {schema}.course c
    left join {schema}.terms t on t.seq = c.seq and t.seq > %b::bigint and t.seq <= %b::bigint
    left join {schema}.item i on i.seq = c.seq and i.seq > %b::bigint and i.seq <= %b::bigint
    left join {schema}.letter l on l.seq = c.seq and l.seq > %b::bigint and l.seq <= %b::bigint
    left join (
        select distinct n.seq from {schema}.tag n where n.seq > %b::bigint and n.seq <= %b::bigint
    ) g on g.seq = c.seq
    where c.seq > %b::bigint and c.seq <= %b::bigint
) looked_at
where misfit or unknown or lease or ending or letter or held or untold or waits or lined or levelled or labelled
order by seq;

-- :name letter
-- One whose item is not there, is not dead, or is of another queue, or that lies nowhere we know; one without a number.
select name, misfit, unnumbered
from (
    select l.seq, coalesce(i.id, '#' || l.seq) as name,
           i.seq is null or c.seq is null or c.state <> 'dead' or c.queue <> l.queue
               or l.disposition not in ('open', 'archived', 'trash') as misfit,
           n.seq is null and l.seq not in (select o.seq from {schema}.unnumbered o) as unnumbered
    from {schema}.letter l
    left join {schema}.course c on c.seq = l.seq and c.seq > %b::bigint and c.seq <= %b::bigint
    left join {schema}.item i on i.seq = l.seq and i.seq > %b::bigint and i.seq <= %b::bigint
    left join {schema}.change n on n.seq = l.seq and n.seq > %b::bigint and n.seq <= %b::bigint
    where l.seq > %b::bigint and l.seq <= %b::bigint
) looked_at
where misfit or unnumbered
order by seq;

-- :name result
select '#' || r.seq, true
from {schema}.result r
left join {schema}.item i on i.seq = r.seq and i.seq > %b::bigint and i.seq <= %b::bigint
where r.seq > %b::bigint and r.seq <= %b::bigint and i.seq is null
order by r.seq;

-- :name attempt
select '#' || a.seq, true
from {schema}.attempt a
left join {schema}.item i on i.seq = a.seq and i.seq > %b::bigint and i.seq <= %b::bigint
where a.seq > %b::bigint and a.seq <= %b::bigint and i.seq is null
order by a.seq;

-- :name revision
-- Of an item that is not there, or of which the terms count another number.
select coalesce(i.id, '#' || r.seq), true
from (
    select v.seq, count(*) as n from {schema}.revision v where v.seq > %b::bigint and v.seq <= %b::bigint group by v.seq
) r
left join {schema}.item i on i.seq = r.seq and i.seq > %b::bigint and i.seq <= %b::bigint
left join {schema}.terms t on t.seq = r.seq and t.seq > %b::bigint and t.seq <= %b::bigint
where i.seq is null or r.n <> coalesce((convert_from(t.body, 'UTF8')::json ->> 'revision')::integer, 0)
order by r.seq;

-- :name recall
select '#' || r.seq, true
from {schema}.recall r
left join {schema}.item i on i.seq = r.seq and i.seq > %b::bigint and i.seq <= %b::bigint
where r.seq > %b::bigint and r.seq <= %b::bigint and i.seq is null
order by r.seq;

-- :name tag
select '#' || g.seq, true
from {schema}.tag g
left join {schema}.item i on i.seq = g.seq and i.seq > %b::bigint and i.seq <= %b::bigint
where g.seq > %b::bigint and g.seq <= %b::bigint and i.seq is null
order by g.seq;

-- :name deed
select '#' || d.seq, true
from {schema}.deed d
left join {schema}.item i on i.seq = d.seq and i.seq > %b::bigint and i.seq <= %b::bigint
where d.seq > %b::bigint and d.seq <= %b::bigint
    and (i.seq is null or not exists (select from {schema}.journal j where j.position = d.position))
order by d.seq;

-- :name bonds
-- Lines, followers, places under limit keys, dedupe keys and edges: which truth (by its number) is broken, and by what.
select 0, l.queue || ': ' || l.key
from {schema}.line l left join {schema}.course c on c.seq = l.head
where case when l.head is null then l.waiting > 0 or l.gap = ''
           when l.status = 0 then coalesce(c.state, '') not in ('ready', 'leased')
           else coalesce(c.state, '') <> 'dead' end
union all
select 1, l.queue || ': ' || l.key
from {schema}.line l
left join (select queue, key, count(*) as n from {schema}.follower group by queue, key) f
    on f.queue = l.queue and f.key = l.key
where l.waiting <> coalesce(f.n, 0)
union all
select 2, coalesce(i.id, '#' || f.seq)
from {schema}.follower f
left join {schema}.course c on c.seq = f.seq
left join {schema}.item i on i.seq = f.seq
left join {schema}.line l on l.queue = f.queue and l.key = f.key
where l.queue is null or coalesce(c.state, '') <> 'ready' or c.hold not in (1, 2, 4)
union all
select 3, coalesce(s.queue, r.queue) || ': ' || coalesce(s.key, r.key)
from {schema}.slot s
full join (
    select c.queue, t.limit_key as key, count(*) as n
    from {schema}.course c join {schema}.terms t on t.seq = c.seq and t.limit_key <> ''
    where c.state = 'leased' group by c.queue, t.limit_key
) r on r.queue = s.queue and r.key = s.key
where coalesce(s.running, 0) <> coalesce(r.n, 0)
union all
select 4, coalesce(i.id, '#' || c.seq)
from {schema}.course c
left join {schema}.terms t on t.seq = c.seq
left join {schema}.item i on i.seq = c.seq
where c.state = 'ready' and c.hold = 3
  and not exists (select 1 from {schema}.aside a where a.queue = c.queue and a.key = t.limit_key and a.seq = c.seq)
union all
select 4, coalesce(i.id, '#' || a.seq)
from {schema}.aside a
left join {schema}.course c on c.seq = a.seq
left join {schema}.item i on i.seq = a.seq
where c.hold is distinct from 3
union all
select 5, d.key
from {schema}.dedupe d left join {schema}.course c on c.seq = d.seq
where coalesce(c.state, 'done') not in ('ready', 'leased')
  and (d.until is null or coalesce(c.state, 'done') in ('dead', 'cancelled'))
union all
select 5, t.dedupe_key
from {schema}.course c
join {schema}.terms t on t.seq = c.seq
where c.state in ('ready', 'leased') and c.ties & 2 <> 0
  and not exists (
      select 1 from {schema}.dedupe d where d.scope = t.scope and d.key = t.dedupe_key and d.seq = c.seq
  )
union all
select 6, coalesce(i.id, '#' || e.waiting)
from {schema}.edge e
left join {schema}.course c on c.seq = e.waiting
left join {schema}.item i on i.seq = e.waiting
left join {schema}.course a on a.seq = e.awaited
where coalesce(c.state, '') <> 'ready' or a.state = 'done' or a.ties & 8 = 0;

-- --- bodies: read only when there is time for it ---

-- :name payload_bodies
select i.id, i.body, i.packing, i.crc from {schema}.item i
where i.seq > %b::bigint and i.seq <= %b::bigint
order by i.seq;

-- :name result_bodies
select coalesce(i.id, '#' || r.seq), r.body, r.packing
from {schema}.result r left join {schema}.item i on i.seq = r.seq
where r.seq > %b::bigint and r.seq <= %b::bigint
order by r.seq;

-- :name letter_bodies
select coalesce(i.id, '#' || l.seq), l.failure, l.cause, l.error
from {schema}.letter l left join {schema}.item i on i.seq = l.seq
where l.seq > %b::bigint and l.seq <= %b::bigint
order by l.seq;

-- :name revision_bodies
select coalesce(i.id, '#' || r.seq), r.body, r.packing, r.crc
from {schema}.revision r left join {schema}.item i on i.seq = r.seq
where r.seq > %b::bigint and r.seq <= %b::bigint
order by r.seq, r.number;

-- :name attempt_bodies
select coalesce(i.id, '#' || a.seq), a.body, a.delivery
from {schema}.attempt a left join {schema}.item i on i.seq = a.seq
where a.seq > %b::bigint and a.seq <= %b::bigint
order by a.seq, a.delivery;

-- --- what is kept beside the rows ---

-- :name counts
-- (what it is, a queue or cause, a counter or queue, a route, how many): one statement, because all has to be of one
-- picture.
select 'kept', k.queue, v.counter, '', sum(v.n)::bigint
from (select * from {schema}.counter union all select * from {schema}.member_counter) k cross join lateral (values
    ('ready', k.ready), ('leased', k.leased), ('done', k.done), ('open', k.open), ('archived', k.archived),
    ('trash', k.trash), ('cancelled', k.cancelled), ('held', k.held), ('parked', k.parked)
) v (counter, n)
group by k.queue, v.counter
union all
select 'declared', name, '', '', 0 from {schema}.queue
union all
select 'counted', c.queue, c.bucket, '', count(*)
from (
    select queue, case when state <> 'ready' then state else {schema}.bucket(seq, queue, hold, ties) end as bucket
    from {schema}.course where state <> 'dead'
) c
group by c.queue, c.bucket
union all
select 'counted', queue, disposition, '', count(*) from {schema}.letter group by queue, disposition
union all
select 'kept causes', cause, queue, route, sum(n)::bigint from {schema}.cause group by cause, queue, route
union all
select 'counted causes', cause, queue, route, count(*) from {schema}.letter where disposition = 'open'
group by cause, queue, route
union all
select 'last', '', '', '', coalesce(pg_sequence_last_value('{schema}.item_seq'::regclass), 0)
union all
select 'highest', '', '', '', coalesce((select max(seq) from {schema}.item), 0);

-- :name turn_misfits
-- Members of a family that could give something, on which no lease of the family will look. One that is paused, or may
-- be full, is not looked at before that changes.
select k.queue from {schema}.member_counter k left join {schema}.queue q on q.name = k.queue
where not coalesce(q.paused, false) and q.max_running is null
    and not exists (select 1 from {schema}.agenda a where a.queue = k.queue)
group by k.queue having sum(k.ready) > 0
order by k.queue;

-- --- repair ---

-- :name lock
-- Two that repair at once would add what is missing twice.
select pg_advisory_xact_lock(hashtextextended(%b, 0));

-- :name set_last_number
select setval('{schema}.item_seq'::regclass, greatest(%b::bigint, coalesce(pg_sequence_last_value('{schema}.item_seq'::regclass), 1)));

-- :name mistold
-- Items whose mark and tags do not agree, held until the write ends, in the order in which acts hold them.
select c.seq, i.id
from {schema}.course c
join {schema}.item i on i.seq = c.seq
where (c.ties & 128 <> 0) <> exists (select 1 from {schema}.tag g where g.seq = c.seq)
order by c.seq
for update of c;

-- :name forget_tags
delete from {schema}.tag g where not exists (select 1 from {schema}.item i where i.seq = g.seq) returning g.seq;

-- :name note_unnumbered
with noted as (
    insert into {schema}.unnumbered (seq)
    select l.seq from {schema}.letter l
    where not exists (select 1 from {schema}.change c where c.seq = l.seq)
        and l.seq not in (select o.seq from {schema}.unnumbered o)
    order by l.seq
    returning seq
)
select i.id from noted n join {schema}.item i on i.seq = n.seq order by i.seq;
