#!lua flags=no-writes
-- settings: what is kept of a queue.
-- Inputs:    the queue
-- Outputs:   its settings; nil if it is not declared
-- Atomicity: one read

return call('HGET', P .. 'queues', ARGV[2])
