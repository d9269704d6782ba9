-- append and journal: an append-only list, read by topic and position.
-- Inputs: entries; topic, position, limit. Outputs: positions; entries in order.
-- Atomicity: all entries of a call in one savepoint. `change` is set only by acts on items.

-- :name append
insert into journal (at, topic, actor, reason, request_id, change, body) values (?, ?, ?, ?, ?, ?, ?);

-- :name read
select position, at, topic, body, actor, reason, request_id
from journal where topic = ? and position > ? order by position limit ?;
