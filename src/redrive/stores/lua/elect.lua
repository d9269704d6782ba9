#!lua flags=allow-oom
-- elect: at most one owner per name.
-- Inputs:    name; owner; for how long
-- Outputs:   1 if the owner leads, 0 if somebody else does
-- Atomicity: one script

local name, owner, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = now()
local kept = call('HGET', sound(P .. 'elections', 'hash'), name)
if kept and string.sub(kept, 17) ~= owner and (tonumber(string.sub(kept, 1, 16)) or 0) > at then
  return 0
end
set(P .. 'elections', name, string.format('%016d', at + ttl) .. owner)
write()
return 1
