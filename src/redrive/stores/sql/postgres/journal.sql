-- append and journal: an append-only list, read by topic and position.
-- Inputs: entries; topic, position, limit. Outputs: positions; entries in order.
-- Atomicity: all entries of a call in one transaction. `change` is set only by acts on items. Positions come in the order
-- of commits, so that whoever reads on from the last one misses none: one writer at a time, until its commit.

-- :name lock
select pg_advisory_xact_lock(hashtextextended(%b, 0));

-- :name append
insert into {schema}.journal (at, topic, actor, reason, request_id, change, body)
select %b::bigint, entry.topic, entry.actor, entry.reason, entry.request_id, %b, entry.body
from unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[])
    with ordinality as entry (topic, actor, reason, request_id, body, place)
order by entry.place
returning position;

-- :name read
select position, at, topic, body, actor, reason, request_id
from {schema}.journal where topic = %b and position > %b::bigint order by position limit %b::bigint;
