-- When something of a queue may be leased: what is due, and when its limits let it go.
-- Inputs:    first_due(queue, kinds that count or nil); when_due(queue, those kinds, limits); is_full(queue, limits). Needs
--            limits.lua and ranks.lua before it
-- Outputs:   the earliest time, past or to come; nil: not before something changes
-- Atomicity: reads.

-- The first due among those that were tried before, and among those that were not.
local function first_due(queue, of_kinds)
  local levels, firsts = call('SMEMBERS', P .. 'levels:' .. queue), {}
  levels[#levels + 1] = '0'
  for _, rank in ipairs(levels) do
    local counts = not of_kinds or of_kinds[kind_in(rank)]
    local when = counts and tonumber(call('ZRANGE', ready_key(queue, rank), 0, 0, 'WITHSCORES')[2])
    local retry = math.floor(level_in(rank) / 3) % 2 == 1
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

local function when_due(queue, of_kinds, limits)
  local first, retry = first_due(queue, of_kinds)
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
