-- Families of queues: their rows, and which members a lease looks at (core.families).
-- Inputs: the pattern of the family, or the names between which its members sort. Outputs: see each statement.
-- Atomicity: part of the verb's own savepoint. A write that may make something of a member leasable lowers its next_at in
--   the same transaction; only a lease that found nothing more to give raises or removes it.

-- :name family
select paused, settings, leased from queue where name = ?;

-- :name declare
insert into queue (name, ready, leased, done, open, archived, trash, cancelled, held, parked)
select ?, coalesce(sum(ready), 0), coalesce(sum(leased), 0), coalesce(sum(done), 0), coalesce(sum(open), 0),
       coalesce(sum(archived), 0), coalesce(sum(trash), 0), coalesce(sum(cancelled), 0), coalesce(sum(held), 0),
       coalesce(sum(parked), 0)
from queue where name > ? and name < ?;

-- :name lower_new
-- The members of a new family that have anything ready. Its own row sorts among theirs.
insert into agenda (family, queue, next_at)
select ?1, name, ?2 from queue where name > ?3 and name < ?4 and ready > 0 and name <> ?1;

-- :name lower
-- One that waits for its turn keeps its place.
insert into agenda (family, queue, next_at) values (?, ?, ?)
on conflict (queue) do update set next_at = excluded.next_at where next_at > excluded.next_at;

-- :name lower_all
update agenda set next_at = ? where family = ? and next_at > ?;

-- :name turns
select queue from agenda where family = ? and next_at <= ? order by next_at, turn limit ?;

-- :name look_at
-- With a new number, and so behind all that have the same time.
insert or replace into agenda (family, queue, next_at) values (?, ?, ?);

-- :name look_no_more
delete from agenda where queue = ?;

-- :name first
-- The first time after this one.
select min(next_at) from agenda where family = ? and next_at > ?;

-- :name due
select queue from agenda where family = ? and next_at <= ?;

-- :name asides
select distinct queue from aside where queue > ? and queue < ?;
