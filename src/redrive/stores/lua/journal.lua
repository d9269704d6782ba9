#!lua flags=no-writes
-- journal: entries of a topic, in order.
-- Inputs:    topic; the position after which to begin; how many
-- Outputs:   the entries as `enter` of the prelude keeps them
-- Atomicity: one read

return call('ZRANGEBYSCORE', P .. 'journal:' .. ARGV[2], '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[4])
