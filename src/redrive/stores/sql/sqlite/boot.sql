-- boot: which start of the machine the database was last opened in; kept as a document.
-- Inputs: the system's boot id; now. Outputs: a row if it is the same.
-- Atomicity: part of the transaction that migrates.

-- :name same
select 1 from document where kind = 'redrive' and key = 'boot' and body = ?;

-- :name expire
update item set lease_until = ? where state = 'leased' and lease_until > ?;

-- :name keep
insert into document (kind, key, version, body) values ('redrive', 'boot', 1, ?)
on conflict (kind, key) do update set version = version + 1, body = excluded.body;
