-- sweep: one bite of retention.
-- Inputs: the number to go on from, how many items, now. Outputs: see each statement.
-- Atomicity: one transaction with tombstones, counters and the audit entry. Who looks locks nothing; what is over is
--   locked and looked at again. Items that ended stay ended, and a letter that was taken from the trash meanwhile is no
--   more over: so nothing is pruned that somebody still needs.

-- :name forget_keys
-- Dedupe keys whose window is over. One that a live item holds has a window, too: it is kept.
delete from {schema}.dedupe d
where d.until <= %b::bigint
    and not exists (select 1 from {schema}.course c where c.seq = d.seq and c.state in ('ready', 'leased') offset 0);

-- :name keeps
-- Whether there is anything to look for.
select 1 from {schema}.queue where keep is not null or keep_results is not null
union all
select 1 from {schema}.counter having sum(trash) > 0
limit 1;

-- :name look
-- The last number looked at, how many, which are over, and of which the results are.
with looked_at as materialized (
    select c.seq, c.queue, c.state, c.ended_at from {schema}.course c
    where c.seq > %b::bigint order by c.seq limit %b::bigint
), judged as (
    select l.seq, coalesce(case
               when l.state in ('done', 'cancelled') then l.ended_at + q.keep <= n.now
               when l.state = 'dead' and l.ended_at + coalesce(q.keep_trash, 2592000000) <= n.now then (
                   select t.disposition = 'trash' from {schema}.letter t
                   where t.seq >= l.seq and t.seq <= l.seq order by t.seq limit 1
               )
           end, false) as over,
           l.ended_at + q.keep_results <= n.now and exists (
               select 1 from {schema}.result r where r.seq = l.seq offset 0
           ) as stale
    from looked_at l
    left join lateral {schema}.settings_for(l.queue, false) q on true
    cross join (select %b::bigint as now) n
)
select max(seq), count(*), array_agg(seq order by seq) filter (where over),
       array_agg(seq order by seq) filter (where stale and not over)
from judged;

-- :name finished
-- Letters only if they have lain in the trash ever since.
select c.seq, i.id, c.queue, c.state, c.state, l.disposition, l.cause, l.route, c.ties::bigint,
       c.deliveries, c.lease_until, c.worker
from {schema}.course c
join {schema}.item i on i.seq = any (array[c.seq])
left join lateral (
    select n.* from {schema}.letter n where n.seq >= c.seq and n.seq <= c.seq order by n.seq limit 1
) l on true
left join lateral {schema}.settings_for(c.queue, false) q on true
where c.seq = any(%b::bigint[]) and (
    c.state in ('done', 'cancelled')
    or (l.disposition = 'trash' and c.ended_at + coalesce(q.keep_trash, 2592000000) <= %b::bigint)
)
order by c.seq;

-- :name drop_results
delete from {schema}.result where seq = any(%b::bigint[]);
