-- extend: prolongs leases that are still held.
-- Inputs: new end, id, delivery, now. Outputs: rows still held (0: lost).
-- Atomicity: one savepoint; repeating it changes nothing more.

-- :name prolong
update item set lease_until = max(lease_until, ?)
where id = ? and deliveries = ? and state = 'leased' and lease_until > ?;

-- :name held
select 1 from item where id = ? and deliveries = ? and state = 'leased' and lease_until > ?;
