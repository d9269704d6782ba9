-- reclaim: takes over leases under a new delivery number.
-- Inputs: queue, latest end, limit; or an id. Outputs: numbers of the items, longest expired first.
-- Atomicity: picked and fenced in one write, so two callers never get the same item.

-- :name expired
select lease_until, seq from item indexed by item_leased
where state = 'leased' and queue = ? and lease_until <= ?
order by lease_until, seq
limit ?;

-- :name expired_members
-- Of a family: as many rows as run in it are looked at.
select lease_until, seq from item indexed by item_leased
where state = 'leased' and queue > ? and queue < ? and lease_until <= ?
order by lease_until, seq
limit ?;

-- :name one
select lease_until, seq, queue from item where id = ? and state = 'leased' and lease_until <= ?;

-- :name take
-- alone 1 becomes 2: still a lone crash to judge, but no longer in the hands of the worker it names.
update item
set deliveries = deliveries + 1, lease_until = ?, alone = case alone when 0 then 0 else 2 end
where seq = ?;
