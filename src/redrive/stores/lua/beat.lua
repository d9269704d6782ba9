#!lua flags=allow-oom
-- beat: a worker says that it is alive. Those not heard of for a day go.
-- Inputs:    worker; its facts as JSON; for how long; a day
-- Outputs:   1 if the namespace is the one that was opened, 0 if it has been emptied since
-- Atomicity: one script

local worker, facts, ttl, day = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local at = now()
set(P .. 'workers', worker, string.format('%016d%016d', at, at + ttl) .. facts)
add(P .. 'seen', at, worker)
for _, gone in ipairs(call('ZRANGEBYSCORE', sound(P .. 'seen', 'zset'), '-inf', at - day, 'LIMIT', 0, MOST)) do
  if gone ~= worker then
    unset(P .. 'workers', gone)
    remove(P .. 'seen', gone)
  end
end
local there = call('EXISTS', P .. 'boot')
write()
return there
