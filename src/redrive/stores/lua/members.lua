#!lua flags=no-writes
-- members: all members of a few small indexes, where a search would otherwise read every item.
-- Inputs:    how many at most; then pairs of "key" and a key without prefix, or "ready" and a queue
-- Outputs:   the ids; nil if there are more
-- Atomicity: one read
-- Uses: levels

local room = tonumber(ARGV[2])
local keys = {}
for index = 3, #ARGV, 2 do
  local name = ARGV[index + 1]
  if ARGV[index] == 'ready' then
    for _, key in ipairs(ready_keys(name)) do
      keys[#keys + 1] = key
    end
    keys[#keys + 1] = P .. 'held:' .. name
  else
    keys[#keys + 1] = P .. name
  end
end
for _, key in ipairs(keys) do
  room = room - call('ZCARD', key)
end
if room < 0 then
  return false
end
local reply = {}
for _, key in ipairs(keys) do
  local is_bare = string.sub(key, #P + 1, #P + 5) == 'held:' or string.sub(key, #P + 1, #P + 4) == 'tag:'
  for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
    reply[#reply + 1] = is_bare and member or id_at(member)
  end
end
return reply
