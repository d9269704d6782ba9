-- sweep: one bite of retention.
-- Inputs: the number to go on from, how many items, now. Outputs: see each statement.
-- Atomicity: one transaction with tombstones, counters and the audit entry. Who looks locks nothing; what is over is
--   locked and looked at again. Items that ended stay ended, so nothing is pruned that somebody still needs.

-- :name forget_keys
-- Dedupe keys whose window is over. One that a live item holds has a window, too: it is kept.
delete from {schema}.dedupe d
where d.until <= %b::bigint
    and not exists (select 1 from {schema}.course c where c.seq = d.seq and c.state in ('ready', 'leased'));

-- :name keeps
select 1 from {schema}.queue where keep is not null or keep_results is not null limit 1;

-- :name look
-- The last number looked at, how many, which are over, and of which the results are.
with looked_at as materialized (
    select c.seq, c.queue, c.state, c.ended_at from {schema}.course c
    where c.seq > %b::bigint order by c.seq limit %b::bigint
), judged as (
    select l.seq, coalesce(l.state in ('done', 'cancelled') and l.ended_at + q.keep <= %b::bigint, false) as over,
           l.ended_at + q.keep_results <= %b::bigint and exists (
               select 1 from {schema}.result r where r.seq = l.seq
           ) as stale
    from looked_at l left join {schema}.queue q on q.name = l.queue
)
select max(seq), count(*), array_agg(seq order by seq) filter (where over),
       array_agg(seq order by seq) filter (where stale and not over)
from judged;

-- :name finished
select c.seq, i.id, c.queue, c.state, c.state, null::text, null::text, null::text, c.ties::bigint
from {schema}.course c join {schema}.item i on i.seq = c.seq
where c.seq = any(%b::bigint[]) and c.state in ('done', 'cancelled')
order by c.seq;

-- :name drop_results
delete from {schema}.result where seq = any(%b::bigint[]);
