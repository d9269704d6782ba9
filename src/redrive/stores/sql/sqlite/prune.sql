-- prune: removes resolved items for good and leaves a tombstone each.
-- Inputs: numbers of items as a JSON array. Outputs: what the tombstones say.
-- Atomicity: one savepoint with counters, tombstones and the audit entry.

-- :name body
select body, packing from payload where seq = ?;

-- :name bury
insert into tombstone (id, queue, state, payload_sha256, at, actor, reason) values (?, ?, ?, ?, ?, ?, ?);

-- :name items
delete from item where seq in (select value from json_each(?));

-- :name payloads
delete from payload where seq in (select value from json_each(?));

-- :name results
delete from result where seq in (select value from json_each(?));

-- :name letters
delete from letter where seq in (select value from json_each(?));

-- :name attempts
delete from attempt where seq in (select value from json_each(?));

-- :name kept_letters
delete from recall where seq in (select value from json_each(?));

-- :name deeds
delete from deed where seq in (select value from json_each(?));

-- :name revisions
delete from revision where seq in (select value from json_each(?));

-- :name terms
-- A dedupe key whose window lasts stays held, and an edge to what was cancelled stays too.
delete from terms where seq in (select value from json_each(?));
