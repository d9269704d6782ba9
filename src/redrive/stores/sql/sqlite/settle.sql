-- settle: ends leases, each only if its delivery is the current one of a leased item.
-- Inputs: per settlement seq, delivery and what becomes of it. Outputs: rows changed (0: not held so).
-- Atomicity: one savepoint with attempts, letters, counters, follow-ups and the next lease.

-- :name held
-- By place among the ids, which come as a JSON array; with what terms.tied has.
select meant.key, i.state, i.deliveries,
       i.seq, i.id, i.queue, i.ties, i.hold, i.enqueued_at, t.order_key, t.place, t.limit_key, t.body
from json_each(?) meant cross join item i on i.id = meant.value left join terms t on t.seq = i.seq;

-- :name route
-- How many more letters it has room for; null for any.
select capacity - open from route where name = ?;

-- :name to_done
-- All that ended their n-th delivery: n, the ties that they have, and their numbers as a JSON array.
update item
set state = 'done', ended_at = ?, lease_until = null, alone = 0
where state = 'leased' and deliveries = ? and ties & 63 = ? and seq in (select value from json_each(?));

-- :name to_ready
update item
set state = 'ready', due_at = ?, lease_until = null, alone = 0,
    errors = errors + ?, crashes = crashes + ?, attempt = attempt - ?
where seq = ? and deliveries = ? and state = 'leased' and ties & 63 = ?;

-- :name to_end
-- Dead or cancelled.
update item
set state = ?, ended_at = ?, lease_until = null, alone = 0,
    errors = errors + ?, crashes = crashes + ?, attempt = attempt - ?
where seq = ? and deliveries = ? and state = 'leased' and ties & 63 = ?;

-- :name insert_result
insert into result (seq, body) values (?, ?);

-- :name insert_packed
insert into result (seq, body, packing) values (?, ?, ?);

-- :name insert_letter
insert into letter (seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure,
                    route)
values (?, ?, ?, ?, 'open', ?, ?, ?, ?, ?, ?, ?);

-- :name insert_attempt
insert into attempt (seq, delivery, body) values (?, ?, ?)
on conflict (seq, delivery) do nothing;

-- :name trim_attempts
-- Keeps the first and the last of an item's attempts: how many in all, and how many first ones.
delete from attempt
where seq = ? and delivery in (
    select delivery from attempt where seq = ? order by delivery
    limit max(0, (select count(*) from attempt where seq = ?) - ?) offset ?
);

-- :name count_omitted
update item set omitted = omitted + ? where seq = ?;
