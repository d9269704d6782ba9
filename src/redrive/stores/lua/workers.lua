#!lua flags=no-writes
-- workers: who was heard of.
-- Inputs:    none
-- Outputs:   now; then per worker its name and: when it was seen and until when it is alive, in 16 digits each, and its
--            facts as JSON
-- Atomicity: one read

local reply = call('HGETALL', P .. 'workers')
table.insert(reply, 1, now())
return reply
