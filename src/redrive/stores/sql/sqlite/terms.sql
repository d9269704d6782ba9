-- terms: what binds an item to others, kept beside it for the few that have any.
-- Inputs: numbers of items as a JSON array, or one. Outputs: the items with their terms, as bonds.Tied.
-- Atomicity: part of the verb's own savepoint.

-- :name insert
insert into terms (seq, body, order_key, place, limit_key, gap) values (?, ?, ?, ?, ?, ?);

-- :name tied
select i.seq, i.id, i.queue, i.ties, i.hold, i.enqueued_at, t.order_key, t.place, t.limit_key, t.body
from json_each(?) meant cross join item i on i.seq = meant.value left join terms t on t.seq = i.seq
order by meant.key;

-- :name hold
update item set hold = ? where seq = ?;

-- :name tie
update item set ties = ties | ? where id = ?;

-- :name place
update terms set place = ? where seq = ?;

-- :name gap
update terms set gap = ? where seq = ?;

-- :name ask
-- To cancel a running item, which may have had no row here.
insert into terms (seq, cancel) values (?, ?) on conflict (seq) do update set cancel = excluded.cancel;

-- :name mark_asked
update item set ties = ties | 96 where seq = ?;

-- :name drop_request
update terms set cancel = '' where seq = ?;

-- :name unmark_asked
update item set ties = ties & ~32 where seq = ?;
