#!lua flags=no-writes
-- tombstone: what remains of a pruned item.
-- Inputs:    the id
-- Outputs:   when it was pruned in 16 digits, and the rest as JSON; nil if it was not
-- Atomicity: one read

return call('HGET', P .. 'tombstones', ARGV[2])
