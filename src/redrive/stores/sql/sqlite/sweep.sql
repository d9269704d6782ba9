-- sweep: what is kept no longer than its queue says.
-- Inputs: the number to go on after, how many to look at. Outputs: items in the order of their numbers.
-- Atomicity: one savepoint with what prune removes.

-- :name settings
select name, settings from queue where settings is not null;

-- :name next
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties, i.ended_at,
       exists (select 1 from result r where r.seq = i.seq)
from item i left join letter l on l.seq = i.seq
where i.seq > ?
order by i.seq
limit ?;
