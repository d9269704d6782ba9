-- lease_letters: gives letters to one worker where they lie.
-- Inputs: ids as a JSON array, the worker, now, the end of the lease, the replay for which they are reserved or
--   empty, whether those that were put off are meant as well. Outputs: numbers of those that could be had.
-- Atomicity: one savepoint: picked and fenced in one write, so two workers never hold one letter.

-- :name free
-- In the order of the ids; and whether this worker has it still. One that was put off has an empty worker.
select i.seq, ifnull(i.worker = ? and i.lease_until > ?, 0)
from json_each(?) meant cross join item i on i.id = meant.value join letter l on l.seq = i.seq
where i.state = 'dead' and l.disposition in ('open', 'archived')
    and l.reserved = ? and (ifnull(i.lease_until, 0) <= ? or i.worker = ? or ? and i.worker = '')
order by meant.key;

-- :name give
update item set deliveries = deliveries + 1, worker = ?, leased_at = ?, lease_until = ?
where seq in (select value from json_each(?));

-- :name prolong
update item set lease_until = max(lease_until, ?) where seq in (select value from json_each(?));
