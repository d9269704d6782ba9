#!lua flags=no-writes
-- When to look again for work in these queues: what is due, and when limits let it go. Paused and full ones have none.
-- Inputs:    ARGV[2] msgpack list of queues
-- Outputs:   time, and the earliest time, past or to come, where there is one
-- Atomicity: reads one state.
-- Uses: limits

local time = now()

-- The first due among those that were tried before, and among those that were not.
local function first_due(queue)
  local levels, firsts = call('SMEMBERS', P .. 'levels:' .. queue), {}
  levels[#levels + 1] = '0'
  for _, level in ipairs(levels) do
    local when = tonumber(call('ZRANGE', P .. 'ready:' .. level .. ':' .. queue, 0, 0, 'WITHSCORES')[2])
    local retry = math.floor(level / 3) % 2 == 1
    if when and (not firsts[retry] or when < firsts[retry]) then
      firsts[retry] = when
    end
  end
  return firsts[false], firsts[true]
end

-- Rounded up: a waiter that comes back too early would find it shut.
local function opening(interval, burst, full_at)
  return math.ceil(opens_at(interval, burst, full_at) / 1000)
end

local function when_due(queue, limits)
  local first, retry = first_due(queue)
  local gate = limits and gate_of(limits)
  if retry and gate and not gate[G_INTERVAL] and gate[G_SHARE] and gate[G_CREDIT] < ONE_RETRY then
    retry = math.max(retry, opening(gate[G_FLOOR], 1, gate[G_FLOOR_AT]))
  end
  local when = first and retry and math.min(first, retry) or first or retry
  if not when or not limits then
    return when
  end
  if limits[RATE_INTERVAL] then
    when = math.max(when, opening(limits[RATE_INTERVAL], limits[RATE_BURST], meter_of(queue)))
  end
  if gate and gate[G_INTERVAL] then
    when = math.max(when, opening(gate[G_INTERVAL], gate[G_BURST], gate[G_NEXT_AT]))
  end
  return when
end

local function is_full(queue, limits)
  return limits and limits[MOST_RUNNING] and call('ZCARD', P .. 'leased:' .. queue) >= limits[MOST_RUNNING]
end

local earliest = nil
for _, queue in ipairs(cmsgpack.unpack(ARGV[2])) do
  local declared = list_of(call('HGET', P .. 'queues', queue))
  if declared and not declared[1] and not is_full(queue, declared[4]) then
    local when = when_due(queue, declared[4])
    if when and (not earliest or when < earliest) then
      earliest = when
    end
  end
end
return {time, earliest}
