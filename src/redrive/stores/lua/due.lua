#!lua flags=no-writes
-- When to look again for work in these queues: what is due, and when limits let it go. Paused and full ones have none.
-- Inputs:    ARGV[2] msgpack list of queues, each with the list of kinds that count, or false for all
-- Outputs:   time, and the earliest time, past or to come, where there is one
-- Atomicity: reads one state.
-- Uses: limits ranks opening

local time = now()

local function when_queue(queue, of_kinds)
  local declared, family, settings = list_of(call('HGET', P .. 'queues', queue)), kin.of(queue)
  local limits = declared and kin.limits(queue, declared[4])
  if not declared or declared[1] or is_full(queue, limits) or family and kin.room(family, settings, 1) == 0 then
    return nil
  end
  return when_due(queue, of_kinds, limits)
end

local function earlier(one, other)
  return one and other and math.min(one, other) or one or other
end

-- A family is looked at when any of its members is. Of those whose turn it is, only items of these kinds count.
local function when_family(family, of_kinds)
  local settings = list_of(call('HGET', P .. 'queues', family))
  if not settings or kin.room(family, settings, 1) == 0 then
    return nil
  end
  local turns, later = P .. 'turns:' .. family, P .. 'later:' .. family
  if not of_kinds then
    return call('EXISTS', turns) == 1 and time or tonumber(call('ZRANGE', later, 0, 0, 'WITHSCORES')[2])
  end
  local earliest = tonumber(call('ZRANGEBYSCORE', later, '(' .. time, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  for _, due in ipairs({call('ZRANGE', turns, 0, -1), call('ZRANGEBYSCORE', later, '-inf', time)}) do
    for _, queue in ipairs(due) do
      earliest = earlier(earliest, when_queue(queue, of_kinds))
    end
  end
  return earliest
end

local earliest = nil
for _, asked in ipairs(cmsgpack.unpack(ARGV[2])) do
  local queue, of_kinds = asked[1], asked[2] and {}
  for _, kind in ipairs(asked[2] or {}) do
    of_kinds[kind] = true
  end
  local when = nil
  if string.sub(queue, -2) == ':*' then
    when = when_family(queue, of_kinds)
  else
    when = when_queue(queue, of_kinds)
  end
  earliest = earlier(earliest, when)
end
return {time, earliest}
