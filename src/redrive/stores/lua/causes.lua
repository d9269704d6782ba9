#!lua flags=no-writes
-- causes: open letters by cause and queue, most first, each with the one that died first as the example.
-- Inputs:    how many; a queue, or empty for all
-- Outputs:   per cause: cause and queue joined by NUL, how many, when the first and the last died, the first one's
--            record and evidence
-- Atomicity: one read

local many, queue = tonumber(ARGV[2]), ARGV[3]

-- A cause may have a NUL, a queue has none.
local function meant(name)
  return queue == '' or string.sub(name, -#queue - 1) == '\0' .. queue
end

-- As many as are asked for, and all that are as frequent as the last of them.
local function most_frequent()
  local found, from = {}, 0
  while true do
    local part = call('ZREVRANGE', P .. 'causes', from, from + MOST - 1, 'WITHSCORES')
    for index = 1, #part, 2 do
      local count = tonumber(part[index + 1])
      if #found >= many and count < found[#found].count then
        return found
      end
      if meant(part[index]) then
        found[#found + 1] = {name = part[index], count = count}
      end
    end
    if #part < 2 * MOST then
      return found
    end
    from = from + MOST
  end
end

-- Those that are equally frequent come from the server by falling name, and go out by rising name. Sorting them here
-- would compare by the locale of the server.
local function in_order(found)
  local ordered, first = {}, 1
  while first <= #found do
    local last = first
    while found[last + 1] and found[last + 1].count == found[first].count do
      last = last + 1
    end
    for index = last, first, -1 do
      ordered[#ordered + 1] = found[index]
    end
    first = last + 1
  end
  return ordered
end

if many <= 0 then
  return {}
end
local reply = {}
local ordered = in_order(most_frequent())
for index = 1, math.min(many, #ordered) do
  local cause = ordered[index]
  local key = P .. 'letters:cq:open:' .. cause.name
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[1] then
    local id = id_at(first[1])
    local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    reply[#reply + 1] = {
      cause.name, cause.count, tonumber(first[2]), tonumber(last[2]),
      call('HGET', P .. 'item', id), call('HGET', P .. 'failure', id),
    }
  end
end
return reply
