-- sweep: what is kept no longer than its queue says.
-- Inputs: the number to go on after, how many to look at. Outputs: items in the order of their numbers.
-- Atomicity: one savepoint with what prune removes.

-- :name settings
-- Of queues in which anything may be over one day; the others keep all that they have.
select name, settings, trash from queue where settings is not null or trash > 0;

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

-- :name next_letters
-- Where nothing but the trash is ever over: letters are few, compared with all that was ever done.
select i.seq, i.id, i.queue, i.state, l.disposition, l.cause, l.route, i.ties, i.ended_at, 0
from letter l cross join item i on i.seq = l.seq
where l.seq > ?
order by l.seq
limit ?;
