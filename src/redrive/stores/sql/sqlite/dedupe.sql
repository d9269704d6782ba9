-- dedupe: who holds a key. A row without `until` belongs to a live item.
-- Inputs: scope and key; number and id of the item; until when. Outputs: the holder.
-- Atomicity: part of the verb's own savepoint.

-- :name holders
-- Of many keys, [scope, key] each.
select d.scope, d.key, d.id, d.until
from json_each(?) meant
cross join dedupe d on d.scope = json_extract(meant.value, '$[0]') and d.key = json_extract(meant.value, '$[1]');

-- :name take
insert into dedupe (scope, key, seq, id, until) values (?, ?, ?, ?, null)
on conflict (scope, key) do update set seq = excluded.seq, id = excluded.id, until = null;

-- :name release
delete from dedupe where scope = ? and key = ? and seq = ?;

-- :name until
update dedupe set until = ? where scope = ? and key = ? and seq = ?;

-- :name forget
delete from dedupe where until <= ?;
