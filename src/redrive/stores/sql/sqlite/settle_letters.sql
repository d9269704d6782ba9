-- settle_letters: ends work on letters where they lie, each only if its delivery is the current one of a leased letter.
-- Inputs: ids as a JSON array; numbers of letters and what becomes of them. Outputs: the letters as they are before.
-- Atomicity: one savepoint with attempts, results, counters, follow-ups and what others wait for.

-- :name held
-- By place among the ids: whether somebody has it, where it lies, and what terms.tied has.
select meant.key, i.state, i.deliveries, i.lease_until is not null and i.worker <> '', l.disposition, l.cause, l.route,
       i.seq, i.id, i.queue, i.ties, i.hold, i.enqueued_at, t.order_key, t.place, t.limit_key, t.body
from json_each(?) meant cross join item i on i.id = meant.value
left join letter l on l.seq = i.seq left join terms t on t.seq = i.seq;

-- :name over
update item set state = ?, ended_at = ?, lease_until = null where seq = ?;

-- :name let_go
update item set lease_until = null where seq = ?;

-- :name hold_back
-- Nobody has it, and nobody gets it before then.
update item set worker = '', lease_until = ? where seq = ?;
