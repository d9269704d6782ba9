-- after: edges from awaited items (by id) to those that wait for them (by number), gone when the awaited one is done.
-- Inputs: an id or a number. Outputs: numbers of those that wait; ids of those awaited.
-- Atomicity: part of the verb's own savepoint, so that a put and the end of what it waits for see each other.

-- :name state
select state from item where id = ?;

-- :name buried
select state from tombstone where id = ?;

-- :name add
insert into edge (awaited, waiting, die) values (?, ?, ?) on conflict (awaited, waiting) do nothing;

-- :name waiting
-- Those who wait for any of these items.
select distinct e.waiting from json_each(?) meant
cross join item i on i.seq = meant.value cross join edge e on e.awaited = i.id;

-- :name fulfil
delete from edge where awaited = ?;

-- :name doomed
select waiting from edge where awaited = ? and die = 1;

-- :name give_up
delete from edge where waiting = ?;

-- :name free
-- Those of these who wait for nobody.
select meant.value from json_each(?) meant where not exists (select 1 from edge e where e.waiting = meant.value);

-- :name missing
select e.awaited, i.seq from edge e left join item i on i.id = e.awaited where e.waiting = ?;

-- :name die
update item set state = 'dead', ended_at = ?, hold = 0, ties = ties & ~256 where seq = ?;
