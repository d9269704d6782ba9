-- document, documents, write_documents: small values by (kind, key), compare-and-set on a version.
-- Inputs: kind, key, version, body. Outputs: documents.
-- Atomicity: all writes of a call in one savepoint.

-- :name one
select kind, key, version, body from document where kind = ? and key = ? and body is not null;

-- :name all
select kind, key, version, body from document where kind = ? and body is not null order by key;

-- :name current
select version, body is not null from document where kind = ? and key = ?;

-- :name write
insert into document (kind, key, version, body) values (?, ?, ?, ?)
on conflict (kind, key) do update set version = excluded.version, body = excluded.body;

-- :name remove
update document set body = null where kind = ? and key = ?;
