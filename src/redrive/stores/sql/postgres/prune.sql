-- prune: removes resolved items for good and leaves a tombstone each.
-- Inputs: numbers of items as an array. Outputs: what the tombstones say.
-- Atomicity: one transaction with counters, tombstones and the audit entry; the courses are locked (see amend).

-- :name digests
-- Of plain bodies the digest; of packed ones what packing.digest reads it from.
select seq, packing, case packing when 0 then sha256(body) when 1 then substr(body, 1, 40) else body end
from {schema}.item where seq = any(%b::bigint[]);

-- :name bury
insert into {schema}.tombstone (id, queue, state, payload_sha256, at, actor, reason)
select id, queue, state, digest, %b::bigint, %b, %b
from unnest(%b::text[], %b::text[], %b::text[], %b::text[]) as stone (id, queue, state, digest)
on conflict (id) do nothing;

-- :name remove
-- What is or was a letter has changed for the last time.
with numbers as (select unnest(%b::bigint[]) as seq),
    changes as (
        insert into {schema}.unnumbered (seq, id)
        select i.seq, i.id from numbers n join {schema}.item i on i.seq = any (array[n.seq])
        where exists (select 1 from {schema}.change c where c.seq = i.seq offset 0)
            or i.seq in (select c.seq from {schema}.unnumbered c)
        order by i.seq
    ),
    results as (delete from {schema}.result using numbers where result.seq = any (array[numbers.seq])),
    letters as (delete from {schema}.letter using numbers where letter.seq = any (array[numbers.seq])),
    attempts as (delete from {schema}.attempt using numbers where attempt.seq = any (array[numbers.seq])),
    bonds as (delete from {schema}.terms using numbers where terms.seq = any (array[numbers.seq])),
    revisions as (delete from {schema}.revision using numbers where revision.seq = any (array[numbers.seq])),
    tags as (delete from {schema}.tag using numbers where tag.seq = any (array[numbers.seq])),
    kept as (delete from {schema}.recall using numbers where recall.seq = any (array[numbers.seq])),
    deeds as (delete from {schema}.deed using numbers where deed.seq = any (array[numbers.seq])),
    courses as (delete from {schema}.course using numbers where course.seq = any (array[numbers.seq]))
delete from {schema}.item using numbers where item.seq = any (array[numbers.seq]);
