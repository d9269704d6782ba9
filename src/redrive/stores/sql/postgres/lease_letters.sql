-- lease_letters: gives letters to one worker where they lie. They stay letters, and no counter moves.
-- Inputs: numbers of items whose courses are locked (amend.lock_named), now, the worker, until when, whether
--   those that were put off are meant as well, the replay for which they are reserved or empty.
-- Outputs: numbers of those that could be had; then the items themselves, in the order in which they are named.
-- Atomicity: one transaction. What is judged is read after the lock is held, so two workers never hold one letter.

-- :name give
-- One that the same worker still holds keeps its delivery, and its lease is never shortened. One that was put off has an
-- empty worker.
with asked as (
    select %b::bigint as now, %b as worker, %b::bigint as until, %b::boolean as early, %b::text as reserved
), free as (
    select c.seq, coalesce(c.worker = a.worker and c.lease_until > a.now, false) as still
    from {schema}.course c
    cross join lateral (
        select n.disposition, n.reserved from {schema}.letter n where n.seq >= c.seq and n.seq <= c.seq order by n.seq limit 1
    ) l
    cross join asked a
    where c.seq = any(%b::bigint[]) and c.state = 'dead' and l.disposition <> 'trash' and l.reserved = a.reserved
        and (coalesce(c.lease_until, 0) <= a.now or c.worker = a.worker or a.early and c.worker = '')
)
update {schema}.course c
set deliveries = c.deliveries + case when f.still then 0 else 1 end,
    leased_at = case when f.still then c.leased_at else a.now end,
    lease_until = case when f.still then greatest(c.lease_until, a.until) else a.until end,
    worker = a.worker
from free f cross join asked a
where c.seq = any (array[f.seq])
returning c.seq;

-- :name given
select o.seq, -o.nth as place from unnest(%b::bigint[]) with ordinality as o (seq, nth)
