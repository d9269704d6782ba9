-- settle_letters: ends leases of letters. The caller has judged each by its delivery in the same transaction.
-- Inputs: numbers of letters as arrays, now. Outputs: none, or queues in which something became ready.
-- Atomicity: one transaction with letters, counters, causes, attempts, results, follow-ups and all that waited. Locks as
--   in amend: first the lines of the letters, then their courses by number; what is judged is read after that.

-- :name free
-- Those that stay letters: free at once, or held back for a while and by nobody.
update {schema}.course c
set lease_until = case when o.delay > 0 then o.now + o.delay end,
    worker = case when o.delay > 0 then '' else c.worker end
from (
    select n.seq, n.delay, %b::bigint as now from unnest(%b::bigint[], %b::bigint[]) as n (seq, delay)
) o
where c.seq = any (array[o.seq]);

-- :name end
-- Those that are over: no letters any more.
with gone as (delete from {schema}.letter where seq = any(%b::bigint[]))
update {schema}.course c set state = o.state, ended_at = o.now, lease_until = null
from (
    select n.seq, n.state, %b::bigint as now from unnest(%b::bigint[], %b::text[]) as n (seq, state)
) o
where c.seq = any (array[o.seq]);

-- :name keep
-- Results and attempts, by the place (from 1) of the letter that they belong to.
select {schema}.keep_evidence(
    null, %b::bigint[], %b::integer[], %b::integer[], null, %b::integer[], %b::smallint[], %b::bytea[], %b::integer[],
    %b::bytea[], null, null, null, null, null, null, null, null, null
);

-- :name take_keys
-- Dedupe keys that are free, for what is left of their windows: as if these had run. A twin keeps its own.
select k.seq
from (
    select array_agg(o.seq order by o.nth) as seqs, array_agg(i.id order by o.nth) as ids,
           array_agg(t.scope order by o.nth) as scopes, array_agg(t.dedupe_key order by o.nth) as keys,
           array_agg(t.until order by o.nth) as untils
    from unnest(%b::bigint[]) with ordinality as o (seq, nth)
    join {schema}.terms t on t.seq = any (array[o.seq]) and t.dedupe_key <> '' and t.until > %b::bigint
    join {schema}.item i on i.seq = any (array[o.seq])
) a
cross join lateral {schema}.take_keys(%b::bigint, a.seqs, a.ids, a.scopes, a.keys, a.untils) k
where a.seqs is not null;

-- :name follow_up
-- They find room in any queue.
select note, other from {schema}.put(
    %b::bigint, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, false
);

-- :name untie
-- What the end of those that others were put to wait for does to these. Their lines have gone on already.
select {schema}.untie(%b::bigint, %b::bigint[], %b::smallint[], '{}', false, 8, true);
