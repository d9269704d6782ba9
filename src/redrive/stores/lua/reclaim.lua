#!lua flags=allow-oom
-- Takes over expired leases under a new delivery number, longest expired first. All else still tells of the lost one.
-- Inputs:    ARGV[2] msgpack list of queues; ARGV[3] for how long from now; ARGV[4] at most so many; ARGV[5] msgpack list
--            of ids, or empty for any; ARGV[6] '1' to take also what has not expired
-- Outputs:   time; [id, record, payload, …]
-- Atomicity: all is read, then all is written.

local time = now()
local until_then = time + tonumber(ARGV[3])
local limit = tonumber(ARGV[4])
local horizon = ARGV[6] == '1' and math.huge or time
local found = {}

local function consider(id, m, queues)
  local head = m and string.match(m[QUEUE], '^[^:]+:')
  local named = m and (queues[m[QUEUE]] or head and queues[head .. '*'])
  if named and m[STATE] == 'leased' and m[LEASE_UNTIL] <= horizon then
    found[#found + 1] = {m[LEASE_UNTIL], m[SEQ], id, m}
  end
end

local queues = {}
for _, queue in ipairs(cmsgpack.unpack(ARGV[2])) do
  queues[queue] = true
end
if ARGV[5] ~= '' then
  for _, id in ipairs(cmsgpack.unpack(ARGV[5])) do
    consider(id, load(id), queues)
  end
else
  local score = ARGV[6] == '1' and '+inf' or time
  local named = {}
  for queue in pairs(queues) do
    local is_family = string.sub(queue, -2) == ':*'
    for _, one in ipairs(is_family and call('ZRANGE', sound(P .. 'running:' .. queue, 'zset'), 0, -1) or {queue}) do
      named[one] = true
    end
  end
  for queue in pairs(named) do
    local key = sound(P .. 'leased:' .. queue, 'zset')
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', score, 'LIMIT', 0, limit)) do
      local id = id_at(member)
      local m = load(id)
      if m and m[STATE] == 'leased' then
        consider(id, m, queues)
      else
        remove(key, member)
      end
    end
  end
end
table.sort(found, function(a, b)
  if a[1] ~= b[1] then
    return a[1] < b[1]
  end
  return a[2] < b[2]
end)

local taken = {}
for index = 1, math.min(limit, #found) do
  local id, m = found[index][3], found[index][4]
  m[DELIVERIES] = m[DELIVERIES] + 1
  m[LEASE_UNTIL] = until_then
  taken[#taken + 1] = id
  taken[#taken + 1] = lay(id, m)
  taken[#taken + 1] = call('HGET', sound(P .. 'body', 'hash'), id)
end
write()
return {time, taken}
