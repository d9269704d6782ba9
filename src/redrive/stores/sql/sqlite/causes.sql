-- causes: open letters by cause and queue, most first, each with its earliest letter as the example.
-- Inputs: a queue or null, how many. Outputs: one row per cause and queue.
-- Atomicity: one read transaction; counts are kept, the two instants come from the ends of an index.

-- :name all
select cause, queue, n from cause order by n desc, cause, queue limit ?;

-- :name of_queue
select cause, queue, n from cause where queue = ? order by n desc, cause, queue limit ?;

-- :name example
select l.error, l.failure, l.died_at,
       (select max(died_at) from letter where cause = ? and queue = ? and disposition = 'open')
from letter l
where l.cause = ? and l.queue = ? and l.disposition = 'open'
order by l.died_at, l.seq
limit 1;
