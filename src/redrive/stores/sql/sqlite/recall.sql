-- recall: letters as they were when they were replayed, and back to them.
-- Inputs: numbers of items as a JSON array. Outputs: what is kept of them.
-- Atomicity: part of the savepoint of amend.

-- :name keep
-- Before anything of the replay is written. role: 1 the head of its order key, 2 the gap of it.
insert or replace into recall (
    seq, deliveries, due_at, renewed_at, attempt, errors, crashes, last_chance, ended_at, queue, reason, died_at,
    disposition, cause, error, error_short, category, rule, failure, route, place, gap, role
)
select i.seq, i.deliveries, i.due_at, i.renewed_at, i.attempt, i.errors, i.crashes, i.last_chance, i.ended_at, l.queue,
       l.reason, l.died_at, l.disposition, l.cause, l.error, l.error_short, l.category, l.rule, l.failure, l.route,
       t.place, t.gap, case when n.head = i.seq then 1 when n.gap = i.id then 2 else 0 end
from json_each(?) meant
cross join item i on i.seq = meant.value
cross join letter l on l.seq = meant.value
left join terms t on t.seq = meant.value and t.order_key <> ''
left join line n on n.key = t.order_key and n.queue = i.queue;

-- :name deliveries
-- The deliveries of these items, now and when they were replayed; none for an item of which no letter is kept.
select i.seq, i.deliveries, r.deliveries
from json_each(?) meant
cross join item i on i.seq = meant.value
cross join recall r on r.seq = meant.value;

-- :name kept
select r.seq, r.queue, r.disposition, r.cause, r.route, r.place, r.gap, r.role
from json_each(?) meant cross join recall r on r.seq = meant.value;

-- :name die
update item
set state = 'dead', hold = 0, ties = item.ties & ~256, due_at = r.due_at, renewed_at = r.renewed_at, attempt = r.attempt, errors = r.errors,
    crashes = r.crashes, last_chance = r.last_chance, ended_at = r.ended_at, replays = item.replays - 1
from recall r
where item.seq in (select value from json_each(?)) and r.seq = item.seq;

-- :name letters
-- In the queue in which the item waits.
insert into letter (
    seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure, route
)
select r.seq, i.queue, r.reason, r.died_at, r.disposition, r.cause, r.error, r.error_short, r.category, r.rule,
       r.failure, r.route
from json_each(?) meant
cross join item i on i.seq = meant.value
cross join recall r on r.seq = meant.value;

-- :name place
update terms set place = ?, gap = ? where seq = ?;

-- :name forget
delete from recall where seq in (select value from json_each(?));
