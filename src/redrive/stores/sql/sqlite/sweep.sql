-- sweep: what is kept no longer than its queue says.
-- Inputs: the number to go on after, how many to look at. Outputs: items in the order of their numbers.
-- Atomicity: one savepoint with what prune removes.

-- :name settings
select name, settings from queue where settings is not null;

-- :name forget_slots
-- Limit keys under which nobody runs: they would be as many as there ever were.
delete from slot where running = 0;

-- :name next
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties, i.ended_at,
       exists (select 1 from result r where r.seq = i.seq)
from item i left join letter l on l.seq = i.seq
where i.seq > ?
order by i.seq
limit ?;
