-- extend: prolongs leases that are still held.
-- Inputs: new end, id, delivery, now, the ties it may not have. Outputs: rows still held (0: lost), and their ties.
-- Atomicity: one savepoint; repeating it changes nothing more.

-- :name prolong
-- Only what is leased, or is a letter that somebody has, ends one day: a letter that is held back is nobody's.
update item set lease_until = max(lease_until, ?)
where id = ? and deliveries = ? and (state = 'leased' or worker <> '') and lease_until > ? and ties & ? = 0;

-- :name held
select ties from item where id = ? and deliveries = ? and (state = 'leased' or worker <> '') and lease_until > ?;
