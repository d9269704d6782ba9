-- document, documents, write_documents: small values by (kind, key), compare-and-set on a version.
-- Inputs: kinds, keys, versions, bodies. Outputs: documents.
-- Atomicity: all writes of a call in one transaction, under the locks of their rows, taken in the order of their names.

-- :name one
select kind, key, version, body from {schema}.document where kind = %b and key = %b and body is not null;

-- :name all
select kind, key, version, body from {schema}.document where kind = %b and body is not null order by key;

-- :name claim
-- A row to lock for each, also for what does not exist yet: two that create it must meet.
insert into {schema}.document (kind, key, version)
select name.kind, name.key, 0
from unnest(%b::text[], %b::text[]) with ordinality as name (kind, key, place)
order by name.place
on conflict (kind, key) do nothing;

-- :name current
select d.kind, d.key, d.version, d.body is not null
from unnest(%b::text[], %b::text[]) as name (kind, key)
join {schema}.document d on d.kind = any (array[name.kind]) and d.key = name.key
order by name.kind collate "C", name.key collate "C"
for update of d;

-- :name write
update {schema}.document d
set version = made.version, body = made.body
from unnest(%b::text[], %b::text[], %b::bigint[], %b::bytea[]) as made (kind, key, version, body)
where d.kind = any (array[made.kind]) and d.key = made.key;

-- :name release
-- What was claimed and never written.
delete from {schema}.document d
using unnest(%b::text[], %b::text[]) as name (kind, key)
where d.kind = any (array[name.kind]) and d.key = name.key and d.version = 0;
