#!lua flags=no-writes
-- document: documents of a kind, as they are kept: "1", the version in 16 digits, the body; "0" for a deleted one.
-- Inputs:    the kind; a key, or none for all
-- Outputs:   keys and documents in turn
-- Atomicity: one read

if ARGV[3] then
  return {ARGV[3], call('HGET', P .. 'documents:' .. ARGV[2], ARGV[3])}
end
return call('HGETALL', P .. 'documents:' .. ARGV[2])
